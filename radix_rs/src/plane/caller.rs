//! The client's side of one call: whether it is still there, and what it is sent.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use tokio::time::{Sleep, sleep, sleep_until};

use super::status::{Code, Refusal};

/// A client whose deadline comes cancels a little before ours comes.
const DEADLINE_SLACK: Duration = Duration::from_millis(50);

/// Why a call ends before its answer is whole.
#[derive(Debug)]
pub(crate) enum End {
    /// The client is to be told.
    Refused(Refusal),
    /// There is no client any more; the code is for the count.
    Gone(Code),
}

impl End {
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::Gone(code) => *code,
        }
    }
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

pub(crate) struct Caller {
    respond: SendResponse<Bytes>,
    /// Once the answer has begun.
    answer: Option<SendStream<Bytes>>,
    deadline: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Caller {
    pub fn new(respond: SendResponse<Bytes>, timeout: Option<Duration>) -> Self {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self {
            respond,
            answer: None,
            deadline: deadline.map(|at| (at, Box::pin(sleep_until(at.into())))),
        }
    }

    /// What is left of the client's time.
    pub fn left(&self) -> Option<Duration> {
        let (at, _) = self.deadline.as_ref()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Ready once the client has gone or its deadline has come.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let reset = match &mut self.answer {
            Some(answer) => answer.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        if reset.is_ready() {
            return Poll::Ready(self.gone());
        }
        if let Some((_, sleep)) = &mut self.deadline {
            ready!(sleep.as_mut().poll(cx));
            let refusal = Refusal::new(Code::DeadlineExceeded, "the deadline passed");
            return Poll::Ready(End::Refused(refusal));
        }
        Poll::Pending
    }

    /// What `future` gives, if the client waits for so long.
    pub async fn wait<T>(&mut self, future: impl Future<Output = T>) -> Result<T, End> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => self.poll_end(cx).map(Err),
        })
        .await
    }

    /// Begins the answer.
    pub fn begin(&mut self, mut headers: HeaderMap) -> Result<(), End> {
        headers.insert(CONTENT_TYPE, GRPC);
        let mut response = Response::new(());
        *response.headers_mut() = headers;
        self.begin_as(response)
    }

    /// Begins the answer with these very headers.
    pub fn begin_as(&mut self, response: Response<()>) -> Result<(), End> {
        match self.respond.send_response(response, false) {
            Ok(answer) => {
                self.answer = Some(answer);
                Ok(())
            }
            Err(_) => Err(self.gone()),
        }
    }

    /// Sends a piece of the answer; returns once the client, or the network to it, takes it. Refused if it takes
    /// nothing for `stall`.
    pub async fn send(&mut self, mut piece: Bytes, stall: Duration) -> Result<(), End> {
        let mut stalled = pin!(None::<Sleep>);
        loop {
            let Some(answer) = &mut self.answer else {
                return Ok(());
            };
            answer.reserve_capacity(piece.len());
            let capacity = answer.capacity();
            if capacity > 0 {
                let part = piece.split_to(capacity.min(piece.len()));
                if answer.send_data(part, false).is_err() {
                    return Err(self.gone());
                }
                if piece.is_empty() {
                    return Ok(());
                }
                stalled.set(None);
                continue;
            }
            if stalled.is_none() {
                stalled.set(Some(sleep(stall)));
            }
            poll_fn(|cx| {
                let capacity = self.answer.as_mut().map(|answer| answer.poll_capacity(cx));
                match capacity {
                    Some(Poll::Ready(Some(Ok(_)))) => return Poll::Ready(Ok(())),
                    Some(Poll::Ready(_)) | None => return Poll::Ready(Err(self.gone())),
                    Some(Poll::Pending) => {}
                }
                if let Poll::Ready(end) = self.poll_end(cx) {
                    return Poll::Ready(Err(end));
                }
                if let Some(stalled) = stalled.as_mut().as_pin_mut() {
                    ready!(stalled.poll(cx));
                    let seconds = stall.as_secs_f64();
                    let message =
                        format!("the answer was not read for {seconds} s; the rest is given up");
                    return Poll::Ready(Err(Refusal::new(Code::Aborted, message).into()));
                }
                Poll::Pending
            })
            .await?;
        }
    }

    /// The last of an answer, or all of it.
    pub fn finish(&mut self, mut trailers: HeaderMap) {
        // If this fails the client has gone, which is no failure of ours.
        if let Some(answer) = &mut self.answer {
            let _ = answer.send_trailers(trailers);
        } else {
            trailers.insert(CONTENT_TYPE, GRPC);
            let mut response = Response::new(());
            *response.headers_mut() = trailers;
            let _ = self.respond.send_response(response, true);
        }
    }

    /// The client left: by its deadline, or by its own will.
    fn gone(&self) -> End {
        let is_late = self.left().is_some_and(|left| left < DEADLINE_SLACK);
        End::Gone(if is_late {
            Code::DeadlineExceeded
        } else {
            Code::Cancelled
        })
    }
}

pub(crate) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
