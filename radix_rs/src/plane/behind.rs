//! Calls that the control plane answers: each goes through as it is, both ways, to the server behind this one.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response, Uri};

use super::caller::{Caller, End};
use super::limits::REQUEST_WINDOW_BYTES;
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
    let (mut head, body) = request.into_parts();
    let mut memory = shard.plane.memory.hold();
    if !body.is_end_stream() {
        memory.add(REQUEST_WINDOW_BYTES as usize)?; // what may have come and not gone on
    }
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
    let _upload = Upload(tokio::task::spawn_local(upload(body, request, memory)));

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

async fn upload(mut body: RecvStream, mut send: SendStream<Bytes>, _held: Held) {
    while let Some(Ok(mut piece)) = poll_fn(|cx| body.poll_data(cx)).await {
        let length = piece.len();
        while !piece.is_empty() {
            send.reserve_capacity(piece.len());
            if send.capacity() == 0 {
                let Some(Ok(_)) = poll_fn(|cx| send.poll_capacity(cx)).await else {
                    return;
                };
                continue;
            }
            let part = piece.split_to(send.capacity().min(piece.len()));
            if send.send_data(part, false).is_err() {
                return;
            }
        }
        let _ = body.flow_control().release_capacity(length);
    }
    if body.is_end_stream() {
        let _ = send.send_data(Bytes::new(), true);
    }
}
