//! The one message of a request: whole and in time, or not at all.

use std::future::poll_fn;
use std::io::Read;

use bytes::{Bytes, BytesMut};
use flate2::read::{GzDecoder, ZlibDecoder};
use h2::RecvStream;
use http::HeaderMap;
use tokio::time::timeout;

use super::caller::End;
use super::limits::{MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT};
use super::request::PREFIX_BYTES;
use super::status::{Code, Refusal};

/// What is set aside at once for a message that is promised; the rest as it comes.
const FIRST_BYTES: usize = 256 << 10;

/// Room behind a message for what is added to it.
pub(crate) const ROOM_BYTES: usize = 128;

/// The message, behind as many bytes as its prefix has.
pub(crate) async fn read_message(
    headers: &HeaderMap,
    body: &mut RecvStream,
) -> Result<BytesMut, End> {
    let whole = timeout(MESSAGE_TIMEOUT, whole(body))
        .await
        .unwrap_or_else(|_| {
            let seconds = MESSAGE_TIMEOUT.as_secs();
            let message = format!("the call brought no request message within {seconds} s");
            Err(Refusal::new(Code::DeadlineExceeded, message).into())
        })?;
    match whole.first() {
        Some(0) => Ok(whole),
        _ => Ok(inflated(headers, &whole[PREFIX_BYTES..])?),
    }
}

async fn whole(body: &mut RecvStream) -> Result<BytesMut, End> {
    let mut come = BytesMut::new();
    loop {
        if let Some(end) = end_of_message(&come)? {
            come.truncate(end); // what follows nobody asked for
            return Ok(come);
        }
        let Some(piece) = poll_fn(|cx| body.poll_data(cx)).await else {
            let message = "the call ended without a request message";
            return Err(Refusal::new(Code::InvalidArgument, message).into());
        };
        let piece = piece.map_err(|_| End::Gone(Code::Cancelled))?;
        // If this fails the connection is gone, which the next poll says.
        let _ = body.flow_control().release_capacity(piece.len());
        add(&piece, &mut come);
    }
}

fn add(piece: &Bytes, come: &mut BytesMut) {
    if come.is_empty() {
        let promised = piece.first_chunk().copied().map_or(0, length);
        come.reserve((promised + PREFIX_BYTES).min(FIRST_BYTES).max(piece.len()) + ROOM_BYTES);
    }
    come.extend_from_slice(piece);
}

fn length([_, length @ ..]: [u8; PREFIX_BYTES]) -> usize {
    u32::from_be_bytes(length) as usize
}

/// Where the first message ends, if it is here.
fn end_of_message(come: &[u8]) -> Result<Option<usize>, Refusal> {
    let Some(prefix) = come.first_chunk() else {
        return Ok(None);
    };
    let length = length(*prefix);
    if length > MAX_MESSAGE_BYTES {
        return Err(too_large(length));
    }
    let end = PREFIX_BYTES + length;
    Ok((come.len() >= end).then_some(end))
}

fn too_large(length: usize) -> Refusal {
    Refusal::new(
        Code::ResourceExhausted,
        format!("the message has {length} bytes, at most {MAX_MESSAGE_BYTES} are allowed"),
    )
}

/// A message that came compressed. No more of it is unpacked than a message may have.
fn inflated(headers: &HeaderMap, packed: &[u8]) -> Result<BytesMut, Refusal> {
    let encoding = headers
        .get("grpc-encoding")
        .map_or(&b""[..], |value| value.as_bytes());
    let mut out = vec![0; PREFIX_BYTES];
    let most = MAX_MESSAGE_BYTES as u64 + 1;
    let read = match encoding {
        b"gzip" => GzDecoder::new(packed).take(most).read_to_end(&mut out),
        b"deflate" => ZlibDecoder::new(packed).take(most).read_to_end(&mut out),
        _ => {
            let encoding = String::from_utf8_lossy(encoding);
            let message = format!("compression {encoding:?} is not known, only gzip and deflate");
            return Err(Refusal::new(Code::Unimplemented, message));
        }
    };
    let length = read.map_err(|error| {
        Refusal::new(
            Code::InvalidArgument,
            format!("the message cannot be unpacked: {error}"),
        )
    })?;
    if length > MAX_MESSAGE_BYTES {
        return Err(too_large(length));
    }
    Ok(BytesMut::from(Bytes::from(out)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http::HeaderValue;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn said(encoding: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-encoding", HeaderValue::from_static(encoding));
        headers
    }

    #[test]
    fn a_compressed_message_is_unpacked_behind_its_prefix() {
        let whole = inflated(&said("gzip"), &gzip(b"hello")).unwrap();
        assert_eq!(whole[PREFIX_BYTES..], *b"hello");
    }

    #[test]
    fn a_bomb_an_unknown_compression_and_rubbish_are_refused() {
        let bomb = gzip(&vec![0; 4 * MAX_MESSAGE_BYTES]);
        assert!(bomb.len() < MAX_MESSAGE_BYTES / 100);
        let code = |refused: Result<BytesMut, Refusal>| refused.unwrap_err().code;
        assert_eq!(
            code(inflated(&said("gzip"), &bomb)),
            Code::ResourceExhausted
        );
        assert_eq!(code(inflated(&said("snappy"), b"x")), Code::Unimplemented);
        assert_eq!(code(inflated(&said("gzip"), b"x")), Code::InvalidArgument);
    }

    #[test]
    fn a_message_is_whole_once_its_length_is_here() {
        assert_eq!(end_of_message(&[0, 0, 0, 0]).unwrap(), None);
        assert_eq!(end_of_message(&[0, 0, 0, 0, 2, 9]).unwrap(), None);
        assert_eq!(end_of_message(&[0, 0, 0, 0, 2, 9, 9, 9]).unwrap(), Some(7));
        assert!(end_of_message(&[0, 1, 0, 0, 1]).is_err());
    }
}
