//! Calls that the control plane answers: each goes through as it is, both ways, to the server behind this one.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response, Uri};

use super::caller::{Caller, End};
use super::memory::Held;
use super::shard::Shard;
use super::status::{Code, Refusal};

/// Passes one call on.
pub(crate) async fn pass(
    shard: Rc<Shard>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let mut caller = Caller::new(respond, None);
    let passed = through(&shard, request, &mut caller).await;
    match passed {
        Ok(trailers) => caller.finish(trailers),
        Err(End::Refused(refusal)) => caller.finish(refusal.into_headers()),
        Err(End::Gone(_)) => {}
    }
}

async fn through(
    shard: &Shard,
    request: Request<RecvStream>,
    caller: &mut Caller,
) -> Result<HeaderMap, End> {
    let most = shard.plane.max_open_calls.load(Relaxed);
    let _open = shard.plane.open_calls_behind.open(most)?;
    let (mut head, body) = request.into_parts();
    head.uri = behind(&head.uri);
    head.version = http::Version::HTTP_2;
    head.headers.remove(AUTHORIZATION); // was looked at
    let connected = caller.wait(shard.sender_behind()).await?;
    let unavailable = |why: String| Refusal::new(Code::Unavailable, why);
    let mut sender = connected.map_err(unavailable)?;
    let sent = sender.send_request(Request::from_parts(head, ()), body.is_end_stream());
    let broke = |error: h2::Error| Refusal::new(Code::from_h2(&error), error.to_string());
    let (mut response, request) = sent.map_err(|error| {
        shard.distrust_behind();
        broke(error)
    })?;
    let _upload = Upload(tokio::task::spawn_local(upload(
        body,
        request,
        shard.plane.memory.hold(),
    )));

    let head = caller
        .wait(poll_fn(|cx| Pin::new(&mut response).poll(cx)))
        .await?;
    let (head, mut body): (_, RecvStream) = head.map_err(broke)?.into_parts();
    if body.is_end_stream() {
        return Ok(head.headers);
    }
    caller.begin_as(Response::from_parts(head, ()))?;
    while let Some(piece) = caller.wait(poll_fn(|cx| body.poll_data(cx))).await? {
        let piece = piece.map_err(broke)?;
        let length = piece.len();
        caller.send(piece, shard.plane.settings.write_stall).await?;
        let _ = body.flow_control().release_capacity(length);
    }
    let trailers = caller.wait(poll_fn(|cx| body.poll_trailers(cx))).await?;
    Ok(trailers.map_err(broke)?.unwrap_or_default())
}

fn behind(uri: &Uri) -> Uri {
    let path = uri.path();
    let built = Uri::builder()
        .scheme("http")
        .authority("localhost")
        .path_and_query(path);
    built.build().unwrap_or_default()
}

/// What the client sends, passed on beside what it gets; ends with the call.
struct Upload(tokio::task::JoinHandle<()>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Takes what comes at once, so that all of it counts, and passes it on as the other side takes it.
async fn upload(mut body: RecvStream, mut send: SendStream<Bytes>, mut held: Held) {
    let mut waiting = VecDeque::new();
    let mut bytes = 0;
    let mut is_over = false;
    poll_fn(|cx| {
        while !is_over {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(piece))) => {
                    bytes += piece.len();
                    if held.set(bytes).is_err() {
                        send.send_reset(Reason::ENHANCE_YOUR_CALM);
                        return Poll::Ready(());
                    }
                    waiting.push_back(piece);
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(()),
                Poll::Ready(None) => is_over = true,
                Poll::Pending => break,
            }
        }
        while let Some(piece) = waiting.front_mut() {
            if piece.is_empty() {
                waiting.pop_front();
                continue;
            }
            send.reserve_capacity(piece.len());
            if send.capacity() == 0 {
                match ready!(send.poll_capacity(cx)) {
                    Some(Ok(_)) => continue,
                    _ => return Poll::Ready(()),
                }
            }
            let part = piece.split_to(send.capacity().min(piece.len()));
            let length = part.len();
            if send.send_data(part, false).is_err() {
                return Poll::Ready(());
            }
            bytes -= length;
            let _ = held.set(bytes); // less than before
            let _ = body.flow_control().release_capacity(length);
        }
        if !is_over {
            return Poll::Pending;
        }
        if body.is_end_stream() {
            let _ = send.send_data(Bytes::new(), true);
        }
        Poll::Ready(())
    })
    .await;
}
