//! The one message of a request: whole and in time, or not at all.

use std::future::poll_fn;
use std::io::{Cursor, Read};

use flate2::bufread::{GzDecoder, ZlibDecoder};
use h2::RecvStream;
use http::HeaderMap;
use tokio::time::timeout;

use super::caller::End;
use super::limits::{MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT};
use super::memory::Held;
use super::request::PREFIX_BYTES;
use super::status::{Code, Refusal};

/// What is set aside at once for a message that is promised; the rest as it comes.
const FIRST_BYTES: usize = 128 << 10;

/// What is unpacked at once; then as much again, and so on.
const FIRST_UNPACKED_BYTES: usize = 16 << 10;

/// Memory of what unpacks: mostly the window of what came before.
const UNPACKER_BYTES: usize = 48 << 10;

/// Room behind a message for what is added to it: a model's name and an id.
pub(crate) const ROOM_BYTES: usize = 1024;

/// The message, behind as many bytes as its prefix has; perhaps not unpacked yet.
pub(crate) struct Message {
    framed: Vec<u8>,
    packed: Option<Box<dyn Read + Send>>,
}

/// Reads the call's message and nothing of what follows: it is dropped as it comes.
pub(crate) async fn read_message(
    headers: &HeaderMap,
    mut body: RecvStream,
    held: &mut Held,
) -> Result<Message, End> {
    let whole = timeout(MESSAGE_TIMEOUT, whole(&mut body, held))
        .await
        .unwrap_or_else(|_| {
            let seconds = MESSAGE_TIMEOUT.as_secs();
            let message = format!("the call brought no request message within {seconds} s");
            Err(Refusal::new(Code::DeadlineExceeded, message).into())
        })?;
    Ok(match whole.first() {
        Some(0) => Message {
            framed: whole,
            packed: None,
        },
        _ => Message::packed(headers, whole, held)?,
    })
}

async fn whole(body: &mut RecvStream, held: &mut Held) -> Result<Vec<u8>, End> {
    let mut come = Vec::new();
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
        add(&piece, &mut come, held)?;
        // If this fails the connection is gone, which the next poll says.
        let _ = body.flow_control().release_capacity(piece.len());
    }
}

/// Room is made for what has come and as much again, not for all that is promised.
fn add(piece: &[u8], come: &mut Vec<u8>, held: &mut Held) -> Result<(), Refusal> {
    let needed = come.len() + piece.len();
    if needed > come.capacity() {
        let prefix = come.first_chunk().or_else(|| piece.first_chunk());
        let promised = PREFIX_BYTES + prefix.copied().map_or(0, length);
        let room = promised.min(FIRST_BYTES.max(2 * needed)).max(needed) + ROOM_BYTES;
        held.add(room - come.capacity().min(room))?;
        come.reserve_exact(room - come.len());
    }
    come.extend_from_slice(piece);
    Ok(())
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

impl Message {
    fn packed(headers: &HeaderMap, whole: Vec<u8>, held: &mut Held) -> Result<Self, Refusal> {
        held.add(UNPACKER_BYTES)?;
        let mut packed = Cursor::new(whole);
        packed.set_position(PREFIX_BYTES as u64);
        let encoding = headers
            .get("grpc-encoding")
            .map_or(&b""[..], |value| value.as_bytes());
        let packed: Box<dyn Read + Send> = match encoding {
            b"gzip" => Box::new(GzDecoder::new(packed)),
            b"deflate" => Box::new(ZlibDecoder::new(packed)),
            _ => {
                let encoding = String::from_utf8_lossy(encoding);
                let message =
                    format!("compression {encoding:?} is not known, only gzip and deflate");
                return Err(Refusal::new(Code::Unimplemented, message));
            }
        };
        Ok(Self {
            framed: vec![0; PREFIX_BYTES],
            packed: Some(packed),
        })
    }

    /// Unpacks what is packed, until there are `enough` bytes. Whether that is all of it, and no more than that.
    ///
    /// # Errors
    /// It cannot be unpacked, is larger than a message may be, or than what may be held.
    pub fn unpack(&mut self, enough: usize, held: &mut Held) -> Result<bool, Refusal> {
        while let Some(packed) = &mut self.packed {
            let begin = self.framed.len();
            if begin > PREFIX_BYTES + MAX_MESSAGE_BYTES {
                return Err(too_large(begin - PREFIX_BYTES));
            }
            if begin >= enough {
                return Ok(false);
            }
            let left = PREFIX_BYTES + MAX_MESSAGE_BYTES + 1 - begin;
            let step = begin.clamp(FIRST_UNPACKED_BYTES.min(left), left);
            held.add(step)?;
            self.framed.reserve_exact(step);
            let read = packed
                .take(step as u64)
                .read_to_end(&mut self.framed)
                .map_err(|error| {
                    let message = format!("the message cannot be unpacked: {error}");
                    Refusal::new(Code::InvalidArgument, message)
                })?;
            if read < step {
                self.packed = None;
                self.framed.shrink_to(begin + read + ROOM_BYTES);
            }
        }
        Ok(self.framed.len() <= enough)
    }

    /// What was unpacked.
    pub fn into_framed(self) -> Vec<u8> {
        self.framed
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http::HeaderValue;

    use super::super::memory::Memory;
    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn inflated(encoding: &'static str, packed: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-encoding", HeaderValue::from_static(encoding));
        let framed = [&[1, 0, 0, 0, 0], packed].concat();
        let mut held = Arc::new(Memory::new(1 << 30)).hold();
        let mut message = Message::packed(&headers, framed, &mut held)?;
        for enough in [1, 1000, usize::MAX] {
            if message.unpack(enough, &mut held)? {
                break;
            }
        }
        Ok(message.into_framed())
    }

    #[test]
    fn a_compressed_message_is_unpacked_behind_its_prefix() {
        let ramp: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        for message in [&b"hello"[..], b"", &ramp, &ramp[..FIRST_UNPACKED_BYTES]] {
            let whole = inflated("gzip", &gzip(message)).unwrap();
            assert_eq!(whole[PREFIX_BYTES..], *message);
        }
        let most = vec![7; MAX_MESSAGE_BYTES];
        assert!(inflated("gzip", &gzip(&most)).unwrap()[PREFIX_BYTES..] == most);
    }

    #[test]
    fn a_bomb_an_unknown_compression_and_rubbish_are_refused() {
        let bomb = gzip(&vec![0; 4 * MAX_MESSAGE_BYTES]);
        assert!(bomb.len() < MAX_MESSAGE_BYTES / 100);
        let code = |refused: Result<Vec<u8>, Refusal>| refused.unwrap_err().code;
        assert_eq!(code(inflated("gzip", &bomb)), Code::ResourceExhausted);
        assert_eq!(code(inflated("snappy", b"x")), Code::Unimplemented);
        assert_eq!(code(inflated("gzip", b"x")), Code::InvalidArgument);
    }

    #[test]
    fn a_bomb_is_unpacked_no_further_than_memory_is_left() {
        let memory = Arc::new(Memory::new(4 << 20));
        let mut held = memory.hold();
        let mut headers = HeaderMap::new();
        headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
        let packed = [&[1, 0, 0, 0, 0][..], &gzip(&vec![0; 15 << 20])].concat();
        let mut message = Message::packed(&headers, packed, &mut held).unwrap();
        let refusal = message.unpack(usize::MAX, &mut held).unwrap_err();
        assert_eq!(refusal.code, Code::ResourceExhausted);
        assert!(message.framed.capacity() <= 4 << 20);
    }

    #[test]
    fn what_has_come_takes_memory_and_what_is_promised_does_not() {
        let memory = Arc::new(Memory::new(1 << 30));
        let mut held = memory.hold();
        let mut come = Vec::new();
        let promise = [&[0, 0, 0xff, 0xff, 0xff], &[7; 11][..]].concat();
        add(&promise, &mut come, &mut held).unwrap();
        assert_eq!(memory.held_bytes(), FIRST_BYTES + ROOM_BYTES);
        for _ in 0..100 {
            add(&[7; 16 << 10], &mut come, &mut held).unwrap();
            assert_eq!(memory.held_bytes(), come.capacity());
            assert!(memory.held_bytes() <= FIRST_BYTES.max(2 * come.len()) + ROOM_BYTES);
            assert!(memory.held_bytes() >= come.len());
        }
    }

    #[test]
    fn a_message_is_whole_once_its_length_is_here() {
        assert_eq!(end_of_message(&[0, 0, 0, 0]).unwrap(), None);
        assert_eq!(end_of_message(&[0, 0, 0, 0, 2, 9]).unwrap(), None);
        assert_eq!(end_of_message(&[0, 0, 0, 0, 2, 9, 9, 9]).unwrap(), Some(7));
        assert!(end_of_message(&[0, 1, 0, 0, 1]).is_err());
    }
}
