//! What the router sees of an answer that passes through: where its messages begin, and the usage in its last.

use std::mem;

use bytes::{Buf, Bytes};

use super::protobuf::{Value, fields};
use super::request::PREFIX_BYTES;

/// Field numbers of inference.proto.
const TOKEN_IDS: u32 = 1;
const USAGE: u32 = 4;

/// Tokens of a completed request, by its replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "as inference.proto has them")]
pub(crate) struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
}

/// What a piece of an answer brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Messages that became whole.
    pub messages: u32,
    /// Those of them, but the answer's first, that carry tokens.
    pub token_messages: u32,
    pub usage: Option<Usage>,
}

/// Follows one answer, piece by piece; no piece is kept but of a message that goes on in the next.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// What has come of a message that is not whole yet.
    begun: Vec<u8>,
    has_begun: bool,
}

impl Watch {
    pub fn see(&mut self, piece: &Bytes) -> Seen {
        let mut seen = Seen::default();
        if self.begun.is_empty() {
            let rest = self.messages(piece, &mut seen);
            self.begun.extend_from_slice(rest);
        } else {
            let mut joined = mem::take(&mut self.begun);
            joined.extend_from_slice(piece);
            if length(&joined).is_some_and(|length| joined.len() >= PREFIX_BYTES + length) {
                let rest = self.messages(&joined, &mut seen).len();
                joined.drain(..joined.len() - rest);
            }
            self.begun = joined;
        }
        seen
    }

    /// Looks at the whole messages; returns what is left.
    fn messages<'a>(&mut self, mut bytes: &'a [u8], seen: &mut Seen) -> &'a [u8] {
        while let Some(length) = length(bytes) {
            let Some(message) = bytes.get(PREFIX_BYTES..PREFIX_BYTES + length) else {
                break;
            };
            self.message(message, seen);
            bytes.advance(PREFIX_BYTES + length);
        }
        bytes
    }

    fn message(&mut self, message: &[u8], seen: &mut Seen) {
        let is_first = !mem::replace(&mut self.has_begun, true);
        let mut has_tokens = false;
        for field in fields(message).map_while(Result::ok) {
            match (field.number, field.value) {
                (TOKEN_IDS, Value::Bytes(_) | Value::Fixed32(_)) => has_tokens = true,
                (USAGE, Value::Bytes(usage)) => seen.usage = Some(read_usage(usage)),
                _ => {}
            }
        }
        seen.messages += 1;
        seen.token_messages += u32::from(has_tokens && !is_first);
    }
}

fn length(bytes: &[u8]) -> Option<usize> {
    let prefix: &[u8; PREFIX_BYTES] = bytes.first_chunk()?;
    let [_, length @ ..] = prefix;
    Some(u32::from_be_bytes(*length) as usize)
}

fn read_usage(bytes: &[u8]) -> Usage {
    let mut usage = Usage::default();
    for field in fields(bytes).map_while(Result::ok) {
        match (field.number, field.value) {
            (1, Value::Varint(tokens)) => usage.prompt_tokens = tokens,
            (2, Value::Varint(tokens)) => usage.cached_tokens = tokens,
            (3, Value::Varint(tokens)) => usage.completion_tokens = tokens,
            _ => {}
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] = b"\0\0\0\0\x06\x0a\x04\x01\0\0\0";
    const LAST: &[u8] = b"\0\0\0\0\x0b\x18\x02\x22\x07\x08\xac\x02\x10\x07\x18\x09";

    fn whole() -> Vec<u8> {
        [FIRST, FIRST, LAST].concat()
    }

    #[test]
    fn messages_are_counted_and_the_usage_is_read_however_they_are_cut() {
        let answer = whole();
        for first in 0..=answer.len() {
            for second in first..=answer.len() {
                let mut watch = Watch::default();
                let pieces = [&answer[..first], &answer[first..second], &answer[second..]];
                let mut total = Seen::default();
                for piece in pieces {
                    let seen = watch.see(&Bytes::copy_from_slice(piece));
                    total.messages += seen.messages;
                    total.token_messages += seen.token_messages;
                    total.usage = total.usage.or(seen.usage);
                }
                let usage = Usage {
                    prompt_tokens: 300,
                    cached_tokens: 7,
                    completion_tokens: 9,
                };
                assert_eq!(
                    total,
                    Seen {
                        messages: 3,
                        token_messages: 1,
                        usage: Some(usage)
                    }
                );
            }
        }
    }

    #[test]
    fn what_is_no_message_is_no_usage() {
        let mut watch = Watch::default();
        let seen = watch.see(&Bytes::from_static(b"\0\0\0\0\x03\x22\xff\xff"));
        assert_eq!((seen.messages, seen.usage), (1, None));
    }
}
