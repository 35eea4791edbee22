//! One attempt: a request at one replica, and the way of its answer to the client.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use tokio::sync::futures::Notified;

use super::answer::Watch;
use super::bodies::Bodies;
use super::burst::poll_burst;
use super::caller::{Caller, End, GRPC};
use super::course::{Course, REQUEST_ID};
use super::metadata::{pass_into, passed};
use super::replicas::{Life, Replica, Running};
use super::shard::Shard;
use super::status::{Code, GRPC_STATUS, Refusal};
use super::timeout;
use super::traces::Trace;
use crate::pick::Pick;

/// How long a request has to have waited for its deadline to speak against the replica.
const MISSED_AFTER_S: f64 = 1.0;

/// How long a replica is passed over that turned a request away, if it does not say so itself; and at most.
const OVERLOADED_S: f64 = 1.0;
const MAX_OVERLOADED_S: f64 = 10.0;

/// What is sent where.
pub(crate) struct Attempt<'a> {
    pub shard: &'a Shard,
    pub replica: &'a Arc<Replica>,
    pub pick: &'a Pick,
    /// Tokens of the prompt that are there to be reused, by the mirror.
    pub matched: u64,
    /// The client's.
    pub metadata: &'a HeaderMap,
    pub began_s: f64,
}

/// Why an attempt is over without a whole answer.
pub(crate) enum Fault {
    /// Nothing of an answer has come, and another replica may serve the request.
    Elsewhere(Refusal),
    End(End),
}

impl Fault {
    pub fn code(&self) -> Code {
        match self {
            Self::Elsewhere(refusal) => refusal.code,
            Self::End(end) => end.code(),
        }
    }
}

impl From<End> for Fault {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

/// Passes the replica's answer on; returns what else stands in its trailers. `message`: the request's, with gRPC's
/// prefix.
pub(crate) async fn forward(
    attempt: Attempt<'_>,
    message: Bytes,
    bodies: &mut Bodies,
    caller: &mut Caller,
    course: &mut Course,
) -> Result<HeaderMap, Fault> {
    let Attempt {
        shard,
        replica,
        pick,
        ..
    } = attempt;
    let ending = pin!(replica.ending());
    let mut side = Side {
        replica,
        life: replica.life(),
        ending,
        running: Running::new(replica),
    };
    if !shard.plane.replicas.has(replica.serial) {
        // It left before its life here was looked at, so nobody would end this call.
        let refusal = Refusal::new(Code::Unavailable, "it left the fleet");
        return Err(failed(&attempt, refusal, false));
    }
    let link = shard.link(replica);
    let mut connecting = pin!(shard.sender(&link, replica));
    let connected = side.wait(caller, |cx| connecting.as_mut().poll(cx)).await;
    let connected = connected.map_err(|stop| stop.into_fault(&attempt, false))?;
    let mut sender = connected.map_err(|why| broken(&attempt, Code::Unavailable, &why, false))?;

    let sent = sender.send_request(attempt.request(caller, &course.trace), false);
    let broke = |error: &h2::Error, answered| {
        broken(&attempt, Code::from_h2(error), &error.to_string(), answered)
    };
    let (mut response, mut request) = sent.map_err(|error| {
        link.distrust();
        broke(&error, false)
    })?;
    // At once, without waiting for its window: the message is held anyway until an answer begins.
    let sent = request.send_data(message, true);
    sent.map_err(|error| broke(&error, false))?;

    let head = side
        .wait(caller, |cx| Pin::new(&mut response).poll(cx))
        .await;
    let head = head.map_err(|stop| stop.into_fault(&attempt, false))?;
    let (head, mut body) = head.map_err(|error| broke(&error, false))?.into_parts();
    if head.status != StatusCode::OK {
        return Err(failed(&attempt, Refusal::of_http(head.status), false));
    }
    if head.headers.contains_key(GRPC_STATUS) && body.is_end_stream() {
        return ended(&attempt, &head.headers, false); // all it says is in its trailers
    }

    let mut watch = Watch::default();
    loop {
        let piece = side.wait(caller, |cx| poll_burst(&mut body, cx)).await;
        let answered = side.running.answered;
        let piece = match piece.map_err(|stop| stop.into_fault(&attempt, answered))? {
            Some(piece) => piece.map_err(|error| broke(&error, answered))?,
            None => break,
        };
        replica.heard(shard.plane.clock.now_s());
        if !answered {
            side.running.answered();
            bodies.answered();
            shard.plane.answered(pick);
            course.trace.answered(pick, attempt.matched);
            caller.begin(attempt.decision(&head.headers, course))?;
        }
        let seen = watch.see(&piece);
        course.saw(seen);
        if let Some(usage) = seen.usage {
            replica.completed(usage, pick);
            course.trace.used(usage);
        }
        let length = piece.len();
        caller.send(piece, shard.plane.settings.write_stall).await?;
        // If this fails the connection is gone, which the next poll says.
        let _ = body.flow_control().release_capacity(length);
    }
    let trailers = side.wait(caller, |cx| body.poll_trailers(cx)).await;
    let answered = side.running.answered;
    let trailers = trailers.map_err(|stop| stop.into_fault(&attempt, answered))?;
    let trailers = trailers.map_err(|error| broke(&error, answered))?;
    ended(&attempt, &trailers.unwrap_or_default(), answered)
}

impl Attempt<'_> {
    fn request(&self, caller: &Caller, trace: &Trace) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.replica.uri.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, GRPC);
        headers.insert(TE, HeaderValue::from_static("trailers"));
        if let Some(left) = caller.left() {
            headers.insert("grpc-timeout", timeout::format(left));
        }
        pass_into(self.metadata, headers);
        trace.write_into(headers);
        request
    }

    /// The replica's headers, and what the router adds to them.
    fn decision(&self, said: &HeaderMap, course: &Course) -> HeaderMap {
        let mut headers = passed(said);
        if let Ok(id) = HeaderValue::from_str(&self.pick.replica) {
            headers.insert("prefixlb-replica", id);
        }
        headers.insert("prefixlb-matched-tokens", HeaderValue::from(self.matched));
        let reason = HeaderValue::from_static(self.pick.reason.name());
        headers.insert("prefixlb-reason", reason);
        if let Some(id) = &course.request_id {
            headers.insert(REQUEST_ID, id.clone());
        }
        headers
    }
}

impl Attempt<'_> {
    /// The deadline passed without an answer. A slow replica is none that fails, and an impatient client is no proof
    /// of anything: it counts after a while, and if nothing else came from there meanwhile.
    fn missed(&self) {
        let waited_s = self.shard.plane.clock.now_s() - self.began_s;
        if waited_s >= MISSED_AFTER_S && self.replica.heard_s() < self.began_s {
            let why = format!("no answer within {waited_s:.1} s, to no request");
            self.shard.plane.failed(self.pick, &why);
        }
    }

    /// What a status means for the next requests; what a request itself brought about means nothing.
    fn judge(&self, refusal: &Refusal, answered: bool) {
        let plane = &self.shard.plane;
        match refusal.code {
            Code::Unavailable | Code::Internal | Code::Unknown | Code::DataLoss => {
                let why = format!("{:?}: {}", refusal.code, refusal.message);
                plane.failed(self.pick, &why);
            }
            Code::DeadlineExceeded if !answered => self.missed(),
            Code::ResourceExhausted => {
                let pause_s = OVERLOADED_S * (0.5 + self.shard.uniform());
                let pause_s = refusal.retry_after_s().map_or(pause_s, f64::from);
                let until_s = plane.clock.now_s() + pause_s.min(MAX_OVERLOADED_S);
                plane.router.overloaded(self.pick.ticket, until_s);
            }
            _ => {}
        }
    }
}

/// A replica's side of an attempt.
struct Side<'r, 'p> {
    replica: &'r Replica,
    life: Life,
    ending: Pin<&'p mut Notified<'r>>,
    running: Running<'r>,
}

/// Why something is no longer waited for.
enum Stop {
    /// Its replica's calls are ended from here.
    Replica(String),
    Caller(End),
}

impl Stop {
    fn into_fault(self, attempt: &Attempt<'_>, answered: bool) -> Fault {
        match self {
            Self::Replica(why) => broken(attempt, Code::Unavailable, &why, answered),
            Self::Caller(end) => {
                if end.code() == Code::DeadlineExceeded && !answered {
                    attempt.missed();
                }
                Fault::End(end)
            }
        }
    }
}

impl Side<'_, '_> {
    /// What `poll` gives, for as long as replica and client are there. The end of a replica's calls comes first:
    /// it says more than what it makes of the connection.
    async fn wait<T>(
        &mut self,
        caller: &mut Caller,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Stop> {
        poll_fn(|cx| {
            let answered = self.running.answered;
            let ended = self
                .replica
                .poll_ended(cx, self.life, answered, self.ending.as_mut());
            if let Poll::Ready(why) = ended {
                return Poll::Ready(Err(Stop::Replica(why)));
            }
            match poll(cx) {
                Poll::Ready(come) => Poll::Ready(Ok(come)),
                Poll::Pending => caller.poll_end(cx).map(|end| Err(Stop::Caller(end))),
            }
        })
        .await
    }
}

/// The answer is over; these are the replica's last headers.
fn ended(attempt: &Attempt<'_>, last: &HeaderMap, answered: bool) -> Result<HeaderMap, Fault> {
    match Refusal::of(last) {
        None => Ok(passed(last)),
        Some(refusal) => Err(failed(attempt, refusal, answered)),
    }
}

fn broken(attempt: &Attempt<'_>, code: Code, why: &str, answered: bool) -> Fault {
    failed(attempt, Refusal::new(code, why), answered)
}

/// What a replica's failure means for the replica and for the request.
fn failed(attempt: &Attempt<'_>, refusal: Refusal, answered: bool) -> Fault {
    let id = &attempt.replica.spec.id;
    let code = match refusal.code {
        Code::Cancelled => Code::Unavailable, // not by us: it is shutting down
        code => code,
    };
    let refusal = Refusal { code, ..refusal };
    attempt.judge(&refusal, answered);
    if code == Code::Unavailable {
        attempt
            .shard
            .plane
            .suspect(attempt.replica, &refusal.message);
    }
    match code {
        // These say that another replica may serve the request.
        Code::Unavailable | Code::ResourceExhausted if !answered => Fault::Elsewhere(Refusal::new(
            code,
            format!("replica {id} failed: {}", refusal.message),
        )),
        Code::Unavailable => {
            let message = format!("replica {id} failed during its answer: {}", refusal.message);
            Fault::End(Refusal::new(code, message).into())
        }
        _ => Fault::End(refusal.into()), // its own, word for word
    }
}
