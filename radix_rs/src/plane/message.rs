//! The one message of a request: whole and in time, or not at all.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use tokio::time::timeout;

use super::caller::End;
use super::limits::{MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT};
use super::request::PREFIX_BYTES;
use super::status::{Code, Refusal};

/// The message without its prefix.
pub(crate) async fn read_message(body: &mut RecvStream) -> Result<Bytes, End> {
    timeout(MESSAGE_TIMEOUT, whole(body))
        .await
        .unwrap_or_else(|_| {
            let seconds = MESSAGE_TIMEOUT.as_secs();
            let message = format!("the call brought no request message within {seconds} s");
            Err(Refusal::new(Code::DeadlineExceeded, message).into())
        })
}

async fn whole(body: &mut RecvStream) -> Result<Bytes, End> {
    let mut come = Bytes::new();
    loop {
        if let Some(end) = end_of_message(&come)? {
            return Ok(come.slice(PREFIX_BYTES..end));
        }
        let Some(piece) = poll_fn(|cx| body.poll_data(cx)).await else {
            let message = "the call ended without a request message";
            return Err(Refusal::new(Code::InvalidArgument, message).into());
        };
        let piece = piece.map_err(|_| End::Gone(Code::Cancelled))?;
        // If this fails the connection is gone, which the next poll says.
        let _ = body.flow_control().release_capacity(piece.len());
        come = if come.is_empty() {
            piece
        } else {
            let mut joined = BytesMut::from(come);
            joined.extend_from_slice(&piece);
            joined.freeze()
        };
    }
}

/// Where the first message ends, if it is here.
fn end_of_message(come: &[u8]) -> Result<Option<usize>, Refusal> {
    let Some([flag, length @ ..]) = come.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if *flag != 0 {
        return Err(Refusal::new(
            Code::Unimplemented,
            "the message is compressed, which is not supported here: send it as it is",
        ));
    }
    if length > MAX_MESSAGE_BYTES {
        return Err(Refusal::new(
            Code::ResourceExhausted,
            format!("the message has {length} bytes, at most {MAX_MESSAGE_BYTES} are allowed"),
        ));
    }
    let end = PREFIX_BYTES + length;
    Ok((come.len() >= end).then_some(end))
}
