//! A `GenerateRequest` on the wire: what the router reads of it, and what it writes into it.

use std::borrow::Cow;
use std::slice::from_ref;

use bytes::Bytes;

use super::limits::{
    MAX_CHAT_MESSAGES, MAX_MEDIA_ITEMS, MAX_MESSAGE_BYTES, MAX_NAME_CHARACTERS, MAX_PROMPT_TOKENS,
    MAX_REQUEST_ID_CHARACTERS, MAX_TEXT_CHARACTERS,
};
use super::message::ROOM_BYTES;
use super::protobuf::{Field, Malformed, Value, check_varints, fields, put_length};
use super::status::{Code, Refusal};
use super::texts::Words;
use crate::text::Message;

#[cfg(test)]
mod fuzz;

/// Field numbers of inference.proto.
const REQUEST_ID: u32 = 1;
const MODEL: u32 = 2;
const TEXT: u32 = 3;
const CHAT: u32 = 4;
const TOKENS: u32 = 5;
const SAMPLING: u32 = 6;
const EXTRA_KEY: u32 = 7;
const CACHE_SALT: u32 = 8;
const PRIORITY: u32 = 9;
const MEDIA: u32 = 10;
/// Of `TokenPrompt`.
const IDS: u32 = 1;
/// Of `ChatPrompt`.
const MESSAGES: u32 = 1;
/// Of `ChatMessage`.
const ROLE: u32 = 1;
const CONTENT: u32 = 2;

/// Of `SamplingParams`.
const STOP: u32 = 6;
const STOP_TOKEN_IDS: u32 = 7;

/// Of a gRPC message: a flag and a length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Of memory that a message of a chat takes besides its words: the smallest are far smaller on the wire.
const CHAT_MESSAGE_BYTES: usize = 128;

/// What is read of a request.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub id: String,
    pub model: String,
    pub extra_key: String,
    pub cache_salt: String,
    pub priority: i32,
    /// Of the prompt, if it came as ids: see [`ids`].
    pub num_ids: usize,
    /// The prompt, if it came as text or chat within all bounds.
    pub words: Option<Words>,
    /// Whether the prompt is token ids within all bounds, and nothing else: then it is known by those.
    pub is_plain: bool,
    /// Parts that are small each and cost memory by their number: of a chat, and of media.
    messages: usize,
    media: usize,
}

impl Request {
    pub fn read(message: &[u8]) -> Result<Self, Malformed> {
        let mut request = Self::default();
        let mut prompts = 0;
        let mut is_other = false;
        for field in fields(message) {
            let field = field?;
            match (field.number, field.value) {
                (REQUEST_ID, Value::Bytes(bytes)) => request.id = text(bytes)?,
                (MODEL, Value::Bytes(bytes)) => request.model = text(bytes)?,
                (EXTRA_KEY, Value::Bytes(bytes)) => request.extra_key = text(bytes)?,
                (CACHE_SALT, Value::Bytes(bytes)) => request.cache_salt = text(bytes)?,
                (TOKENS, Value::Bytes(bytes)) => {
                    prompts += 1;
                    for piece in pieces(bytes) {
                        request.num_ids += piece?.len();
                    }
                }
                (PRIORITY, Value::Varint(zigzag)) => request.priority = signed(zigzag),
                (TEXT, Value::Bytes(bytes)) => {
                    prompts += 1;
                    request.words = Some(Words::Text(text(bytes)?));
                }
                (CHAT, Value::Bytes(bytes)) => {
                    prompts += 1;
                    let (messages, count) = read_messages(bytes)?;
                    request.words = Some(Words::Chat(messages));
                    request.messages += count;
                }
                (SAMPLING, Value::Bytes(bytes)) => check_sampling(bytes)?,
                (MEDIA, Value::Bytes(bytes)) => {
                    fields(bytes).try_for_each(|field| field.map(drop))?;
                    is_other = true;
                    request.media += 1;
                }
                _ => {}
            }
        }
        let names = [&request.model, &request.extra_key, &request.cache_salt];
        let is_usual =
            prompts == 1 && !is_other && names.iter().all(|name| name.len() <= MAX_NAME_CHARACTERS);
        request.is_plain = is_usual && (1..=MAX_PROMPT_TOKENS).contains(&request.num_ids);
        request.words = request
            .words
            .filter(|words| is_usual && is_within_bounds(words));
        Ok(request)
    }

    /// Its id, or as much of that as anybody is told.
    pub fn cut_id(&self) -> &str {
        let cut = self.id.char_indices().nth(MAX_REQUEST_ID_CHARACTERS);
        cut.map_or(&self.id, |(end, _)| &self.id[..end])
    }

    /// Memory of what was read of the prompt, about.
    pub fn prompt_bytes(&self) -> usize {
        let words = self.words.as_ref().map_or(0, Words::bytes);
        words + CHAT_MESSAGE_BYTES * self.messages
    }

    /// Refuses more parts than are worth reading.
    ///
    /// # Errors
    /// There are too many.
    pub fn check_counts(&self) -> Result<(), Refusal> {
        check("chat", self.messages, MAX_CHAT_MESSAGES, "messages")?;
        check("media", self.media, MAX_MEDIA_ITEMS, "items")
    }
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
    Ok(text.to_owned())
}

/// What its replica could not read is refused here.
fn check_sampling(sampling: &[u8]) -> Result<(), Malformed> {
    for field in fields(sampling) {
        match field? {
            Field {
                number: STOP,
                value: Value::Bytes(stop),
                ..
            } => drop(std::str::from_utf8(stop).map_err(|_| Malformed)?),
            Field {
                number: STOP_TOKEN_IDS,
                value: Value::Bytes(ids),
                ..
            } => check_varints(ids)?,
            _ => {}
        }
    }
    Ok(())
}

/// As many messages as there may be, and how many there are.
fn read_messages(chat: &[u8]) -> Result<(Vec<Message>, usize), Malformed> {
    let mut messages = Vec::new();
    let mut count = 0;
    for field in fields(chat) {
        let field = field?;
        if let (MESSAGES, Value::Bytes(bytes)) = (field.number, field.value) {
            count += 1;
            if count > MAX_CHAT_MESSAGES {
                continue;
            }
            let mut message = Message::default();
            for field in fields(bytes) {
                let field = field?;
                match (field.number, field.value) {
                    (ROLE, Value::Bytes(bytes)) => message.role = text(bytes)?,
                    (CONTENT, Value::Bytes(bytes)) => message.content = text(bytes)?,
                    _ => {}
                }
            }
            messages.push(message);
        }
    }
    Ok((messages, count))
}

fn is_within_bounds(words: &Words) -> bool {
    match words {
        Words::Text(text) => text.chars().count() <= MAX_TEXT_CHARACTERS,
        Words::Chat(messages) => {
            let texts = messages.iter().flat_map(|each| [&each.role, &each.content]);
            texts.map(|text| text.chars().count()).sum::<usize>() <= MAX_TEXT_CHARACTERS
        }
    }
}

/// A sint32.
fn signed(zigzag: u64) -> i32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "as protobuf reads more than 32 bits"
    )]
    let zigzag = zigzag as u32;
    (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed()
}

/// An id as it stands in a message, little-endian.
type WireId = [u8; 4];

/// The ids of a message's prompt, if it is plain. They are copied only if they came in more pieces than one.
pub(crate) fn ids(message: &[u8]) -> Cow<'_, [WireId]> {
    let prompt = fields(message).flatten().find_map(|field| match field {
        Field {
            number: TOKENS,
            value: Value::Bytes(prompt),
            ..
        } => Some(prompt),
        _ => None,
    });
    let pieces = prompt.into_iter().flat_map(pieces).flatten();
    let mut pieces = pieces.filter(|piece| !piece.is_empty());
    let mut ids = Cow::Borrowed(pieces.next().unwrap_or_default());
    for piece in pieces {
        ids.to_mut().extend_from_slice(piece);
    }
    ids
}

/// Ids come packed, or one by one from who does not know how.
fn pieces(prompt: &[u8]) -> impl Iterator<Item = Result<&[WireId], Malformed>> {
    fields(prompt).map(|field| match field? {
        Field {
            number: IDS,
            value: Value::Bytes(packed),
            ..
        } => match packed.as_chunks() {
            (ids, []) => Ok(ids),
            _ => Err(Malformed),
        },
        Field {
            number: IDS,
            value: Value::Fixed32(id),
            ..
        } => Ok(from_ref(id)),
        _ => Ok(Default::default()),
    })
}

/// The request as a replica gets it: as it came, with the model and the id that the router decided on.
/// `framed` is the message behind room for its prefix.
///
/// # Errors
/// It is then too large for anybody.
pub(crate) fn as_it_came(
    mut framed: Vec<u8>,
    request: &Request,
    model: &str,
    made_id: &str,
) -> Result<Bytes, Refusal> {
    let mut names = Vec::new();
    put_names(request, model, made_id, &mut names);
    framed.reserve_exact(names.len()); // mostly there is room for them
    framed.extend_from_slice(&names);
    check_size(framed.len() - PREFIX_BYTES)?;
    put_prefix(&mut framed);
    Ok(Bytes::from(framed))
}

/// The same with token ids for its prompt.
///
/// # Errors
/// It is then too large for anybody.
pub(crate) fn with_tokens(
    message: &[u8],
    tokens: &[u32],
    request: &Request,
    model: &str,
    made_id: &str,
) -> Result<Bytes, Refusal> {
    let mut out = Vec::with_capacity(message.len() + 4 * tokens.len() + ROOM_BYTES);
    out.resize(PREFIX_BYTES, 0);
    for field in fields(message).flatten() {
        if !matches!(field.number, TEXT | CHAT | TOKENS) {
            out.extend_from_slice(field.wire);
        }
    }
    put_names(request, model, made_id, &mut out);
    let mut packed = Vec::with_capacity(8);
    put_length(IDS, 4 * tokens.len(), &mut packed);
    put_length(TOKENS, packed.len() + 4 * tokens.len(), &mut out);
    out.extend_from_slice(&packed);
    let begin = out.len();
    out.resize(begin + 4 * tokens.len(), 0);
    let (words, _) = out[begin..].as_chunks_mut();
    for (word, id) in words.iter_mut().zip(tokens) {
        *word = id.to_le_bytes();
    }
    check_size(out.len() - PREFIX_BYTES)?;
    put_prefix(&mut out);
    Ok(Bytes::from(out))
}

fn check_size(size: usize) -> Result<(), Refusal> {
    check("the request", size, MAX_MESSAGE_BYTES, "bytes")
}

fn check(name: &str, length: usize, most: usize, unit: &str) -> Result<(), Refusal> {
    if length <= most {
        return Ok(());
    }
    let message = format!("{name} has {length} {unit}, at most {most} are allowed");
    Err(Refusal::new(Code::InvalidArgument, message))
}

/// The last of a field counts, so what is put at the end is what is meant.
fn put_names(request: &Request, model: &str, made_id: &str, out: &mut Vec<u8>) {
    if request.model != model {
        put_text(MODEL, model, out);
    }
    if request.id.is_empty() {
        put_text(REQUEST_ID, made_id, out);
    } else if request.cut_id() != request.id {
        put_text(REQUEST_ID, request.cut_id(), out);
    }
}

fn put_text(number: u32, text: &str, out: &mut Vec<u8>) {
    put_length(number, text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

fn put_prefix(framed: &mut [u8]) {
    let length = u32::try_from(framed.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    framed[0] = 0;
    framed[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_length(number, bytes.len(), &mut out);
        out.extend_from_slice(bytes);
        out
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[9; PREFIX_BYTES], message].concat()
    }

    fn ids(ids: &[u32]) -> Vec<u8> {
        let packed: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        field(TOKENS, &field(IDS, &packed))
    }

    fn read_ids(message: &[u8]) -> Vec<u32> {
        let ids = super::ids(message);
        ids.iter().map(|id| u32::from_le_bytes(*id)).collect()
    }

    const MESSAGES_TAG: u8 = 1 << 3 | 2;

    #[test]
    fn a_request_of_token_ids_is_plain() {
        let message = [field(7, b"lora"), ids(&[1, u32::MAX]), field(8, b"salt")].concat();
        let request = Request::read(&message).unwrap();
        assert!(request.is_plain);
        assert_eq!(request.num_ids, 2);
        assert_eq!(read_ids(&message), [1, u32::MAX]);
        assert!(matches!(super::ids(&message), Cow::Borrowed(_)));
        assert_eq!(
            (request.extra_key.as_str(), request.cache_salt.as_str()),
            ("lora", "salt")
        );
    }

    #[test]
    fn a_priority_is_signed() {
        for (zigzag, priority) in [(0, 0), (1, -1), (2, 1), (0xffff_ffff, i32::MIN)] {
            assert_eq!(signed(zigzag), priority);
        }
    }

    #[test]
    fn ids_one_by_one_are_ids_too() {
        let message = field(TOKENS, &[0x0d, 1, 0, 0, 0, 0x0d, 2, 0, 0, 0]);
        let request = Request::read(&message).unwrap();
        assert_eq!((request.is_plain, request.num_ids), (true, 2));
        assert_eq!(read_ids(&message), [1, 2]);
    }

    fn message(role: &[u8], content: &[u8]) -> Vec<u8> {
        field(
            MESSAGES,
            &[field(ROLE, role), field(CONTENT, content)].concat(),
        )
    }

    #[test]
    fn a_text_or_chat_is_read() {
        let read = |message: &[u8]| Request::read(message).unwrap().words;
        let said = |role: &str, content: &str| Message {
            role: role.to_owned(),
            content: content.to_owned(),
        };
        assert_eq!(read(&field(TEXT, b"x")), Some(Words::Text("x".to_owned())));
        let chat = [message(b"system", b"s"), message(b"user", "ü".as_bytes())].concat();
        let expected = vec![said("system", "s"), said("user", "ü")];
        assert_eq!(read(&field(CHAT, &chat)), Some(Words::Chat(expected)));
        assert_eq!(read(&field(CHAT, b"")), Some(Words::Chat(vec![])));
    }

    #[test]
    fn a_text_or_chat_beyond_a_bound_is_left_to_who_says_so() {
        let long = |characters: usize| "ü".repeat(characters);
        let text = |characters: usize| field(TEXT, long(characters).as_bytes());
        let words = |message: &[u8]| Request::read(message).unwrap().words;
        assert!(words(&text(MAX_TEXT_CHARACTERS)).is_some());
        let most = message(b"u", long(MAX_TEXT_CHARACTERS - 1).as_bytes());
        assert!(words(&field(CHAT, &most)).is_some());
        for message in [
            text(MAX_TEXT_CHARACTERS + 1),
            field(CHAT, &message(b"u", long(MAX_TEXT_CHARACTERS).as_bytes())),
            [field(TEXT, b"x"), field(MEDIA, b"")].concat(),
            [field(TEXT, b"x"), field(TEXT, b"y")].concat(),
            [
                field(TEXT, b"x"),
                field(MODEL, &[b'x'; MAX_NAME_CHARACTERS + 1]),
            ]
            .concat(),
        ] {
            assert!(words(&message).is_none());
        }
    }

    #[test]
    fn too_many_parts_are_refused_by_their_number() {
        let refused = |message: &[u8]| Request::read(message).unwrap().check_counts();
        let chat = |messages: usize| field(CHAT, &[MESSAGES_TAG, 0].repeat(messages));
        let media = |items: usize| field(MEDIA, b"").repeat(items);
        assert!(refused(&chat(MAX_CHAT_MESSAGES)).is_ok());
        assert!(refused(&media(MAX_MEDIA_ITEMS)).is_ok());
        let why = refused(&chat(MAX_CHAT_MESSAGES + 1)).unwrap_err().message;
        assert_eq!(why, "chat has 16385 messages, at most 16384 are allowed");
        let why = refused(&media(MAX_MEDIA_ITEMS + 1)).unwrap_err().message;
        assert_eq!(why, "media has 1025 items, at most 1024 are allowed");
    }

    #[test]
    fn everything_else_is_not_plain() {
        for message in [
            vec![],
            ids(&[]),
            ids(&vec![1; MAX_PROMPT_TOKENS + 1]),
            field(TEXT, b"x"),
            [field(TEXT, b"x"), ids(&[1])].concat(),
            [ids(&[1]), ids(&[2])].concat(),
            [ids(&[1]), field(MEDIA, b"")].concat(),
            [ids(&[1]), field(MODEL, &[b'x'; MAX_NAME_CHARACTERS + 1])].concat(),
        ] {
            assert!(!Request::read(&message).unwrap().is_plain);
        }
    }

    #[test]
    fn what_protobuf_would_not_read_is_malformed() {
        for message in [
            vec![0x0a, 0xff, 0xff],
            field(MODEL, &[0xff]),
            field(TOKENS, &field(IDS, &[1, 2, 3])),
            field(TOKENS, &[0x0a, 9]),
        ] {
            assert!(Request::read(&message).is_err(), "{message:?}");
        }
    }

    #[test]
    fn model_and_id_are_added_where_they_are_missing() {
        let message = [field(REQUEST_ID, b""), ids(&[7])].concat();
        let request = Request::read(&message).unwrap();
        let sent = as_it_came(framed(&message), &request, "m", "made").unwrap();
        assert_eq!(
            sent[..PREFIX_BYTES],
            [0, 0, 0, 0, u8::try_from(sent.len()).unwrap() - 5]
        );
        let read = Request::read(&sent[PREFIX_BYTES..]).unwrap();
        assert_eq!((read.model.as_str(), read.id.as_str()), ("m", "made"));
        assert_eq!(read_ids(&sent[PREFIX_BYTES..]), [7]);
    }

    #[test]
    fn a_long_id_is_cut_between_characters() {
        let message = field(REQUEST_ID, "ü".repeat(200).as_bytes());
        let request = Request::read(&message).unwrap();
        let sent = as_it_came(framed(&message), &request, "", "made").unwrap();
        let read = Request::read(&sent[PREFIX_BYTES..]).unwrap();
        assert_eq!(read.id, "ü".repeat(128));
    }

    #[test]
    fn tokens_take_the_place_of_the_text() {
        let message = [
            field(TEXT, b"hello"),
            field(6, &[8, 5]),
            field(CACHE_SALT, b"s"),
        ]
        .concat();
        let request = Request::read(&message).unwrap();
        let sent = with_tokens(&message, &[1, 2, 3], &request, "m", "id").unwrap();
        let read = Request::read(&sent[PREFIX_BYTES..]).unwrap();
        assert!(read.is_plain);
        assert_eq!(read_ids(&sent[PREFIX_BYTES..]), [1, 2, 3]);
        assert_eq!(read.cache_salt, "s");
        assert!(
            sent.windows(4)
                .any(|window| window == [6 << 3 | 2, 2, 8, 5])
        );

        let large = [
            field(TEXT, b"x"),
            field(15, &vec![0; MAX_MESSAGE_BYTES - 100]),
        ]
        .concat();
        let request = Request::read(&large).unwrap();
        let refusal = with_tokens(&large, &[1; 100], &request, "m", "id").unwrap_err();
        assert!(refusal.message.ends_with("at most 16777216 are allowed"));
    }
}
