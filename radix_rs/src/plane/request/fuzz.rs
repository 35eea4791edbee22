//! The reader of requests against two others, on valid messages that were broken at random: prost, and Python's,
//! by which replicas read. A message is read by all with the same result, or by none.
//!
//! `PREFIXLB_FUZZ_SECONDS` says how long it goes on. `PREFIXLB_FUZZ_PYTHON` names the Python that
//! reads too, by `tests/request_reader.py`; without it prost says only what a message means, not whether it is one:
//! it refuses known fields of a wrong type, which Python passes over.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use prost::Message as _;

use super::super::protobuf::{Value, fields};
use super::{CHAT, Request, TEXT, TOKENS, Words, ids};

mod sent;

#[derive(Clone, PartialEq, prost::Message)]
struct GenerateRequest {
    #[prost(string, tag = "1")]
    request_id: String,
    #[prost(string, tag = "2")]
    model: String,
    #[prost(oneof = "Prompt", tags = "3, 4, 5")]
    prompt: Option<Prompt>,
    #[prost(message, optional, tag = "6")]
    sampling: Option<SamplingParams>,
    #[prost(string, tag = "7")]
    extra_key: String,
    #[prost(string, tag = "8")]
    cache_salt: String,
    #[prost(sint32, tag = "9")]
    priority: i32,
    #[prost(message, repeated, tag = "10")]
    media: Vec<MediaItem>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Prompt {
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "4")]
    Chat(ChatPrompt),
    #[prost(message, tag = "5")]
    Tokens(TokenPrompt),
}

#[derive(Clone, PartialEq, prost::Message)]
struct TokenPrompt {
    #[prost(fixed32, repeated, tag = "1")]
    ids: Vec<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChatPrompt {
    #[prost(message, repeated, tag = "1")]
    messages: Vec<ChatMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChatMessage {
    #[prost(string, tag = "1")]
    role: String,
    #[prost(string, tag = "2")]
    content: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SamplingParams {
    #[prost(uint32, optional, tag = "1")]
    max_tokens: Option<u32>,
    #[prost(float, tag = "2")]
    temperature: f32,
    #[prost(uint32, tag = "3")]
    top_k: u32,
    #[prost(float, optional, tag = "4")]
    top_p: Option<f32>,
    #[prost(uint64, optional, tag = "5")]
    seed: Option<u64>,
    #[prost(string, repeated, tag = "6")]
    stop: Vec<String>,
    #[prost(uint32, repeated, tag = "7")]
    stop_token_ids: Vec<u32>,
    #[prost(bool, tag = "8")]
    ignore_eos: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MediaItem {
    #[prost(uint32, tag = "1")]
    start: u32,
    #[prost(uint32, tag = "2")]
    end: u32,
    #[prost(bytes = "vec", tag = "3")]
    content_hash: Vec<u8>,
}

fn word() -> impl Strategy<Value = String> + Clone {
    prop_oneof![Just(String::new()), "[a-c]{1,4}", "ü{1,3}", ".{0,6}"]
}

fn chat() -> impl Strategy<Value = ChatPrompt> {
    let message = (word(), word()).prop_map(|(role, content)| ChatMessage { role, content });
    prop::collection::vec(message, 0..4).prop_map(|messages| ChatPrompt { messages })
}

fn prompt() -> impl Strategy<Value = Option<Prompt>> {
    let ids = prop::collection::vec(prop_oneof![0u32..300, any::<u32>()], 0..40);
    prop_oneof![
        1 => Just(None),
        2 => word().prop_map(|text| Some(Prompt::Text(text))),
        3 => chat().prop_map(|chat| Some(Prompt::Chat(chat))),
        4 => ids.prop_map(|ids| Some(Prompt::Tokens(TokenPrompt { ids }))),
    ]
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let stop = prop::collection::vec(word(), 0..3);
    let ids = prop::collection::vec(any::<u32>(), 0..3);
    (any::<Option<u32>>(), any::<f32>(), stop, ids).prop_map(
        |(max_tokens, temperature, stop, stop_token_ids)| SamplingParams {
            max_tokens,
            temperature,
            stop,
            stop_token_ids,
            ..SamplingParams::default()
        },
    )
}

fn request() -> impl Strategy<Value = GenerateRequest> {
    let media = (any::<u32>(), prop::collection::vec(any::<u8>(), 0..4)).prop_map(
        |(start, content_hash)| MediaItem {
            start,
            end: 9,
            content_hash,
        },
    );
    let media = prop_oneof![3 => Just(vec![]), 1 => prop::collection::vec(media, 1..3)];
    let names = [word(), word(), word(), word()];
    let rest = (prompt(), prop::option::of(sampling()), any::<i32>(), media);
    (names, rest).prop_map(|(names, (prompt, sampling, priority, media))| {
        let [request_id, model, extra_key, cache_salt] = names;
        GenerateRequest {
            request_id,
            model,
            prompt,
            sampling,
            extra_key,
            cache_salt,
            priority,
            media,
        }
    })
}

/// One way to break a message.
#[derive(Clone, Debug)]
enum Break {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Cut(Index),
    Repeat(Index, usize, Index),
}

impl Break {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let at = |index: &Index, bytes: &[u8]| index.index(bytes.len().max(1)).min(bytes.len());
        let end = |from: usize, length: usize, bytes: &[u8]| (from + length).min(bytes.len());
        match self {
            Self::Set(index, byte) => {
                let at = at(index, bytes);
                if let Some(place) = bytes.get_mut(at) {
                    *place = *byte;
                }
            }
            Self::Flip(index, bit) => {
                let at = at(index, bytes);
                if let Some(place) = bytes.get_mut(at) {
                    *place ^= 1 << (bit % 8);
                }
            }
            Self::Insert(index, more) => {
                let at = at(index, bytes);
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Remove(index, length) => {
                let from = at(index, bytes);
                bytes.drain(from..end(from, *length, bytes));
            }
            Self::Cut(index) => bytes.truncate(at(index, bytes)),
            Self::Repeat(index, length, to) => {
                let from = at(index, bytes);
                let part = bytes[from..end(from, *length, bytes)].to_vec();
                let to = at(to, bytes);
                bytes.splice(to..to, part);
            }
        }
    }
}

/// Bytes that mean something at many places: keys, groups, lengths, varints without end.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let key = (1u8..17, 0u8..8).prop_map(|(number, kind)| vec![number << 3 | kind]);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 1..6),
        prop::collection::vec(
            prop_oneof![Just(0x80u8), Just(0xff), Just(0), Just(1)],
            1..11
        ),
        key.clone(),
        (key, prop::collection::vec(any::<u8>(), 0..4))
            .prop_map(|(key, rest)| [key, rest].concat()),
        Just(vec![0x7b, 0x7c]),             // a group of field 15
        Just(vec![0x7b, 0x08, 0x01, 0x7c]), // with a field
        Just(vec![0xfa, 0x06, 2, 7, 7]),    // a field nobody knows
    ]
}

fn broken() -> impl Strategy<Value = Vec<u8>> {
    let index = any::<Index>;
    let one = prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Break::Set(at, byte)),
        (index(), any::<u8>()).prop_map(|(at, bit)| Break::Flip(at, bit)),
        (index(), fragment()).prop_map(|(at, more)| Break::Insert(at, more)),
        (index(), 1usize..5).prop_map(|(at, length)| Break::Remove(at, length)),
        index().prop_map(Break::Cut),
        (index(), 1usize..20, index()).prop_map(|(at, length, to)| Break::Repeat(at, length, to)),
    ];
    (request(), prop::collection::vec(one, 0..4)).prop_map(|(request, breaks)| {
        let mut bytes = request.encode_to_vec();
        for each in breaks {
            each.apply(&mut bytes);
        }
        bytes
    })
}

fn said(role: &str, content: &str) -> crate::text::Message {
    crate::text::Message {
        role: role.to_owned(),
        content: content.to_owned(),
    }
}

/// Both were read of these bytes: they must say the same.
fn check_same(bytes: &[u8], ours: &Request, other: &GenerateRequest) {
    assert_eq!(ours.id, other.request_id, "{bytes:?}");
    assert_eq!(ours.model, other.model, "{bytes:?}");
    assert_eq!(ours.extra_key, other.extra_key, "{bytes:?}");
    assert_eq!(ours.cache_salt, other.cache_salt, "{bytes:?}");
    assert_eq!(ours.priority, other.priority, "{bytes:?}");
    assert_eq!(ours.media, other.media.len(), "{bytes:?}");
    let prompt = other.prompt.as_ref();
    if ours.is_plain {
        let tokens = Prompt::Tokens(TokenPrompt {
            ids: ids(bytes)
                .iter()
                .map(|id| u32::from_le_bytes(*id))
                .collect(),
        });
        assert_eq!(Some(&tokens), prompt, "{bytes:?}");
    }
    match (&ours.words, prompt) {
        (None, _) => {}
        (Some(Words::Text(text)), Some(Prompt::Text(other))) => assert_eq!(text, other),
        (Some(Words::Chat(messages)), Some(Prompt::Chat(chat))) => {
            let other = chat.messages.iter();
            let other: Vec<_> = other.map(|each| said(&each.role, &each.content)).collect();
            assert_eq!(*messages, other, "{bytes:?}");
        }
        (words, other) => panic!("{words:?}, {other:?}: {bytes:?}"),
    }
    // What is usual must not be left to others.
    let prompts = fields(bytes).flatten().filter(|field| {
        matches!(field.number, TEXT | CHAT | TOKENS) && matches!(field.value, Value::Bytes(_))
    });
    let is_usual = other.media.is_empty() && prompts.count() == 1;
    if let (true, Some(prompt)) = (is_usual, prompt) {
        let is_empty = matches!(prompt, Prompt::Tokens(tokens) if tokens.ids.is_empty());
        assert!(
            ours.is_plain || ours.words.is_some() || is_empty,
            "{bytes:?}"
        );
    }
}

/// Reads as replicas do.
struct Python {
    child: Child,
}

impl Python {
    fn start() -> Option<Self> {
        let command = std::env::var_os("PREFIXLB_FUZZ_PYTHON")?;
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let child = Command::new(command)
            .args(["-m", "tests.request_reader"])
            .current_dir(root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Some(Self { child })
    }

    /// Each message as Python would send it on; None of what it refuses.
    fn read(&mut self, messages: &[Vec<u8>]) -> Vec<Option<GenerateRequest>> {
        let mut asked = u32::try_from(messages.len())
            .unwrap()
            .to_le_bytes()
            .to_vec();
        for message in messages {
            asked.extend_from_slice(&u32::try_from(message.len()).unwrap().to_le_bytes());
            asked.extend_from_slice(message);
        }
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(&asked).unwrap();
        input.flush().unwrap();
        let output = self.child.stdout.as_mut().unwrap();
        let mut read = |length: usize| {
            let mut bytes = vec![0; length];
            output.read_exact(&mut bytes).unwrap();
            bytes
        };
        let answers = messages.iter().map(|_| {
            let length = u32::from_le_bytes(*read(4).first_chunk().unwrap());
            let is_read = length != u32::MAX;
            is_read.then(|| GenerateRequest::decode(&*read(length as usize)).unwrap())
        });
        answers.collect()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// How long to go on.
fn seconds() -> Duration {
    let seconds = std::env::var("PREFIXLB_FUZZ_SECONDS");
    Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().unwrap()))
}

#[test]
fn a_broken_message_is_read_by_all_with_the_same_result_or_by_none() {
    let began = Instant::now();
    let mut python = Python::start();
    let mut runner = TestRunner::new(Config::default());
    let strategy = broken();
    let (mut messages, mut read) = (0, 0);
    while messages < 20_000 || began.elapsed() < seconds() {
        let batch = (0..1000).map(|_| strategy.new_tree(&mut runner).unwrap().current());
        let batch: Vec<_> = batch.collect();
        let by_python = python.as_mut().map(|python| python.read(&batch));
        for (number, bytes) in batch.iter().enumerate() {
            let ours = Request::read(bytes);
            read += u64::from(ours.is_ok());
            let by_prost = GenerateRequest::decode(&**bytes);
            if let (Ok(ours), Ok(other)) = (&ours, &by_prost) {
                check_same(bytes, ours, other);
            }
            if let Ok(other) = &by_prost {
                // Whatever was odd about it, what it means is read.
                check_same(
                    bytes,
                    &Request::read(&other.encode_to_vec()).unwrap(),
                    other,
                );
            }
            if let Some(by_python) = &by_python {
                let other = &by_python[number];
                assert_eq!(
                    ours.is_ok(),
                    other.is_some(),
                    "ours and Python's: {bytes:?}"
                );
                if let (Ok(ours), Some(other)) = (&ours, other) {
                    check_same(bytes, ours, other);
                }
            }
        }
        messages += batch.len();
    }
    let readers = if python.is_some() {
        "prost and Python"
    } else {
        "prost"
    };
    let line = format!(
        "requests against {readers}: {messages} messages, {read} of them readable, in {:.0} s\n",
        began.elapsed().as_secs_f64()
    );
    // Past the test harness, which keeps what a passing test prints.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
