//! What the router sees of an answer that passes through: where its messages begin, and the usage in its last.

use std::mem;

use bytes::Bytes;

use super::protobuf::{Value, fields};
use super::request::PREFIX_BYTES;

/// Field numbers of inference.proto.
const TOKEN_IDS: u32 = 1;
const USAGE: u32 = 4;

/// How much of a message is read. What is not whole by then is not seen: the usage after a text that is longer, more
/// than a thousand tokens at once. A replica may declare any length, and this much is kept for each of its answers.
const READ_BYTES: usize = 4096;

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

/// Follows one answer, piece by piece. Of a message that goes on in the next piece it keeps what is read of it.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The first bytes of a message that is not whole yet: its prefix, and what is read of it.
    begun: Vec<u8>,
    /// How many of its bytes have come, kept or not.
    come: usize,
    has_begun: bool,
}

impl Watch {
    pub fn see(&mut self, piece: &Bytes) -> Seen {
        let mut seen = Seen::default();
        let mut bytes = &piece[..];
        while !bytes.is_empty() {
            if self.begun.is_empty()
                && let Some((message, rest)) = whole(bytes)
            {
                self.message(message, &mut seen);
                bytes = rest;
            } else {
                bytes = self.go_on(bytes, &mut seen);
            }
        }
        seen
    }

    /// Takes what belongs to the message that is begun, of its prefix first; returns what is left.
    fn go_on<'a>(&mut self, bytes: &'a [u8], seen: &mut Seen) -> &'a [u8] {
        let missing = length(&self.begun).map_or(PREFIX_BYTES, whole_bytes) - self.come;
        let (mine, rest) = bytes.split_at(missing.min(bytes.len()));
        self.come += mine.len();
        let kept = mine.len().min(whole_bytes(READ_BYTES) - self.begun.len());
        self.begun.extend_from_slice(&mine[..kept]);
        if length(&self.begun).is_some_and(|length| self.come == whole_bytes(length)) {
            let begun = mem::take(&mut self.begun);
            self.come = 0;
            self.message(&begun[PREFIX_BYTES..], seen);
        }
        rest
    }

    fn message(&mut self, message: &[u8], seen: &mut Seen) {
        let is_first = !mem::replace(&mut self.has_begun, true);
        let mut has_tokens = false;
        let read = &message[..message.len().min(READ_BYTES)];
        for field in fields(read).map_while(Result::ok) {
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

/// Of a message of this length, with its prefix.
fn whole_bytes(length: usize) -> usize {
    PREFIX_BYTES + length
}

/// The message that comes first, if it is whole, and what follows it.
fn whole(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    bytes[PREFIX_BYTES.min(bytes.len())..].split_at_checked(length(bytes)?)
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
    use proptest::prelude::*;

    use super::*;

    const FIRST: &[u8] = b"\0\0\0\0\x06\x0a\x04\x01\0\0\0";
    const LAST: &[u8] = b"\0\0\0\0\x0b\x18\x02\x22\x07\x08\xac\x02\x10\x07\x18\x09";
    const USED: Usage = Usage {
        prompt_tokens: 300,
        cached_tokens: 7,
        completion_tokens: 9,
    };

    /// With a token, then a text, then the usage.
    fn message(text_bytes: usize) -> Vec<u8> {
        let mut body = FIRST[PREFIX_BYTES..].to_vec();
        body.push(2 << 3 | 2);
        prost::encoding::encode_varint(text_bytes as u64, &mut body);
        body.resize(body.len() + text_bytes, b'x');
        body.extend_from_slice(&LAST[PREFIX_BYTES..]);
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[0], &length[..], &body].concat()
    }

    fn seen<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Seen {
        let (mut watch, mut total) = (Watch::default(), Seen::default());
        for piece in pieces {
            let seen = watch.see(&Bytes::copy_from_slice(piece));
            total.messages += seen.messages;
            total.token_messages += seen.token_messages;
            total.usage = total.usage.or(seen.usage);
        }
        total
    }

    #[test]
    fn messages_are_counted_and_the_usage_is_read_however_they_are_cut() {
        let answer = [FIRST, FIRST, LAST].concat();
        let expected = Seen {
            messages: 3,
            token_messages: 1,
            usage: Some(USED),
        };
        for first in 0..=answer.len() {
            for second in first..=answer.len() {
                let pieces = [&answer[..first], &answer[first..second], &answer[second..]];
                assert_eq!(seen(pieces), expected);
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_seen_of_an_answer_does_not_depend_on_where_it_is_cut(
            texts in prop::collection::vec(
                prop_oneof![0..20usize, READ_BYTES - 40..READ_BYTES + 20, 3 * READ_BYTES..20_000], 1..4,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let answer: Vec<_> = texts.into_iter().flat_map(message).collect();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(answer.len() + 1)).collect();
            cuts.extend([0, answer.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|ends| &answer[ends[0]..ends[1]]);
            prop_assert_eq!(seen(pieces), seen([&answer[..]]));
        }
    }

    #[test]
    fn of_a_long_message_the_tokens_are_seen_and_what_follows_its_text_is_not() {
        let long = message(READ_BYTES);
        let expected = |usage| Seen {
            messages: 2,
            token_messages: 1,
            usage,
        };
        assert_eq!(seen([FIRST, &long]), expected(None));
        assert_eq!(seen([&long[..], &message(9)]), expected(Some(USED)));
    }

    #[test]
    fn little_is_kept_of_a_message_however_long_it_says_it_is() {
        let mut watch = Watch::default();
        watch.see(&Bytes::from_static(b"\0\xff\xff\xff\xff"));
        for _ in 0..1000 {
            let seen = watch.see(&Bytes::from_static(&[b'x'; 1000]));
            assert_eq!(seen, Seen::default());
            assert!(watch.begun.capacity() <= 2 * READ_BYTES);
        }
    }

    #[test]
    fn what_is_no_message_is_no_usage() {
        let seen = seen([&b"\0\0\0\0\x03\x22\xff\xff"[..]]);
        assert_eq!((seen.messages, seen.usage), (1, None));
    }
}
