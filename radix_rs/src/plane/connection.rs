//! One connection of a client: its calls are taken for as long as it gives signs of life.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::{Sleep, sleep_until, timeout};

use super::caller::Caller;
use super::connections::Seated;
use super::limits::{
    ANSWER_WINDOW_BYTES, HANDSHAKE_TIMEOUT, KEEPALIVE, KEEPALIVE_TIMEOUT, MAX_CONNECTION_STREAMS,
    MAX_HEADER_LIST_BYTES, MAX_UNSEEN_RESETS, REQUEST_WINDOW_BYTES, REQUESTS_WINDOW_BYTES,
    RESET_KEPT, RESETS_KEPT,
};
use super::line::{Gathered, Line};
use super::patience::{Lost, Patience};
use super::replicas::GENERATE;
use super::shard::{Phase, Shard};
use super::status::{Code, Refusal};
use super::strangers::Reason;
use super::{behind, call, elsewhere, tls};

/// How long a client has to hear that its connection is over.
const LINGER: Duration = Duration::from_millis(500);

/// Serves a client until it leaves, falls silent, or the router is done with it.
pub(crate) async fn serve(shard: Rc<Shard>, socket: TcpStream, seated: Seated) {
    // Tokens are small and each is waited for; a socket that has no such option is none of a client.
    let _ = socket.set_nodelay(true);
    let peer = socket.peer_addr().map(|address| address.ip()).ok();
    let Some(config) = shard.plane.tls.clients() else {
        return converse(&shard, socket, &seated, peer).await;
    };
    let greeted = {
        let mut greeting = pin!(timeout(HANDSHAKE_TIMEOUT, tls::greet(config, socket)));
        let mut to_leave = pin!(seated.to_leave());
        poll_fn(|cx| match to_leave.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => greeting.as_mut().poll(cx).map(Some),
        })
        .await
    };
    match greeted {
        Some(Ok(Ok(socket))) => converse(&shard, socket, &seated, peer).await,
        Some(Ok(Err((reason, socket)))) => {
            if let Some(reason) = reason {
                shard.plane.strangers.turned_away(reason, peer);
            }
            part(&shard.line(socket).1).await;
        }
        Some(Err(_)) => shard.plane.strangers.turned_away(Reason::Slow, peer),
        None => {} // somebody else has its place
    }
}

async fn converse<T>(shard: &Rc<Shard>, socket: T, seated: &Seated, peer: Option<IpAddr>)
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (line, gathered) = shard.line(socket);
    if let Err(broken) = speak(shard, line, &gathered, seated, peer).await
        && !broken.is_io()
        && !broken.is_remote()
    {
        shard.plane.strangers.turned_away(Reason::BrokenHttp2, peer);
    }
    part(&gathered).await;
}

/// What the client still sends is read, or the end would reach it as a failure, before our last words.
async fn part<T: AsyncRead + AsyncWrite + Unpin>(gathered: &Gathered<T>) {
    let _ = timeout(LINGER, poll_fn(|cx| gathered.poll_end(cx))).await;
}

/// Until one of both sides is done; an error if the client's bytes made it so.
async fn speak<T>(
    shard: &Rc<Shard>,
    line: Line<T>,
    gathered: &Gathered<T>,
    seated: &Seated,
    peer: Option<IpAddr>,
) -> Result<(), h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_CONNECTION_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_pending_accept_reset_streams(MAX_UNSEEN_RESETS)
        .max_concurrent_reset_streams(RESETS_KEPT)
        .reset_stream_duration(RESET_KEPT)
        .max_send_buffer_size(ANSWER_WINDOW_BYTES as usize)
        .initial_window_size(REQUEST_WINDOW_BYTES)
        .initial_connection_window_size(REQUESTS_WINDOW_BYTES);
    let mut handshake = pin!(builder.handshake::<_, Bytes>(line));
    let mut to_leave = pin!(seated.to_leave());
    let handshake = poll_fn(|cx| match to_leave.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => given(gathered, cx, |cx| handshake.as_mut().poll(cx).map(Some)),
    });
    let Ok(Some(greeted)) = timeout(HANDSHAKE_TIMEOUT, handshake).await else {
        return Ok(()); // it says nothing, or somebody else has its place
    };
    let mut connection = greeted?;
    let mut phases = shard.phases.clone();
    let mut drained = pin!(async move {
        let _ = phases.wait_for(|phase| *phase != Phase::Serving).await;
    });
    let mut is_leaving = false;
    let mut patience = Patience::new(shard.plane.settings.write_stall);
    let mut keepalive = Keepalive::new(connection.ping_pong(), gathered.last_read());
    loop {
        let next = poll_fn(|cx| {
            let is_to_leave = !is_leaving
                && (to_leave.as_mut().poll(cx).is_ready() || drained.as_mut().poll(cx).is_ready());
            let next = given(gathered, cx, |cx| {
                let next = connection.poll_accept(cx);
                if next.is_pending() && keepalive.poll_silent(cx, gathered.last_read()).is_ready() {
                    return Poll::Ready(None);
                }
                next
            });
            let lost = patience.poll_lost(cx, seated, gathered.stuck());
            if lost == Poll::Ready(Lost::Over) {
                return Poll::Ready(None);
            }
            if is_to_leave || lost.is_ready() {
                is_leaving = true;
                connection.graceful_shutdown();
                patience.told();
                cx.waker().wake_by_ref(); // so that it is said
            }
            next
        });
        match next.await {
            Some(call) => {
                let (request, respond) = call?; // its calls learn of an error by themselves
                take(shard, seated, request, respond, peer);
            }
            None => return Ok(()),
        }
    }
}

/// What `poll` gives; what it wrote is given to the socket, or when that takes it. A socket that broke says so
/// when it is read.
fn given<T, S: AsyncWrite + Unpin>(
    gathered: &Gathered<S>,
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let done = poll(cx);
    let _ = gathered.poll_give(cx);
    done
}

/// Serves a call beside the others.
fn take(
    shard: &Rc<Shard>,
    seated: &Seated,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    peer: Option<IpAddr>,
) {
    let path = request.uri().path();
    let calling = seated.call();
    let shard = shard.clone();
    if let Some(status) = elsewhere::objection(&request) {
        spawn_local(async move {
            elsewhere::turn_away(request.into_body(), respond, status).await;
            drop(calling);
        });
    } else if let Some((reason, refusal)) = shard.plane.tokens.objection(path, request.headers()) {
        shard.plane.strangers.turned_away(reason, peer);
        if path == GENERATE {
            shard.plane.unnamed.ended(refusal.code);
        }
        Caller::new(respond, None).finish(refusal.into_headers());
    } else if path == GENERATE {
        spawn_local(async move {
            call::generate(shard, request, respond).await;
            drop(calling);
        });
    } else if path.bytes().all(|byte| byte.is_ascii_graphic()) {
        spawn_local(async move {
            behind::pass(shard, request, respond).await;
            drop(calling);
        });
    } else {
        let refusal = Refusal::new(Code::Unimplemented, "the method's name is no name");
        Caller::new(respond, None).finish(refusal.into_headers());
    }
}

/// Asks a silent client for a sign of life.
struct Keepalive {
    pings: Option<PingPong>,
    timer: std::pin::Pin<Box<Sleep>>,
    asked: Option<Instant>,
}

impl Keepalive {
    fn new(pings: Option<PingPong>, last_read: Instant) -> Self {
        Self {
            pings,
            timer: Box::pin(sleep_until((last_read + KEEPALIVE).into())),
            asked: None,
        }
    }

    /// Ready once it was asked and gave none.
    fn poll_silent(&mut self, cx: &mut Context<'_>, last_read: Instant) -> Poll<()> {
        let Some(pings) = &mut self.pings else {
            return Poll::Pending;
        };
        let _ = pings.poll_pong(cx); // that something came is seen below
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.asked.is_some_and(|asked| last_read < asked) {
                return Poll::Ready(());
            }
            let due = last_read + KEEPALIVE;
            if now < due {
                self.asked = None;
                self.timer.as_mut().reset(due.into());
            } else {
                let _ = pings.send_ping(Ping::opaque()); // one that is on its way will do
                self.asked = Some(now);
                self.timer.as_mut().reset((now + KEEPALIVE_TIMEOUT).into());
            }
        }
        Poll::Pending
    }
}
