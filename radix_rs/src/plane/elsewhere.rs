//! Requests that are none of gRPC: read to their end, and turned away.

use std::future::poll_fn;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tokio::time::timeout;

use super::limits::{MAX_HEADER_LIST_BYTES, MESSAGE_TIMEOUT};

const TEXT: &[u8] =
    b"This port speaks gRPC: see prefixlb.v1.Inference, or ask its reflection service.\n";

/// The status of what is no call; None of a call.
pub(crate) fn objection(request: &Request<RecvStream>) -> Option<StatusCode> {
    let kind = request.headers().get(CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        Some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    } else if request.method() != Method::POST {
        Some(StatusCode::METHOD_NOT_ALLOWED)
    } else {
        None
    }
}

/// Answers when the whole request is here, or as much of it as anybody waits for.
pub(crate) async fn turn_away(
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
    status: StatusCode,
) {
    let reading = async {
        let mut left = MAX_HEADER_LIST_BYTES as usize;
        while let Some(piece) = poll_fn(|cx| body.poll_data(cx)).await {
            let length = piece?.len();
            body.flow_control().release_capacity(length)?;
            left = left.saturating_sub(length);
            if left == 0 {
                break;
            }
        }
        Ok::<(), h2::Error>(())
    };
    if let Ok(Err(_)) = timeout(MESSAGE_TIMEOUT, reading).await {
        return; // it broke off, or contradicts itself, which its client was told
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    if let Ok(mut stream) = respond.send_response(response, false) {
        let _ = stream.send_data(Bytes::from_static(TEXT), true);
    }
}
