//! What replicas get of a request, read by prost: the request as prost reads what came, but for what is added.

use proptest::collection::vec;

use super::super::{PREFIX_BYTES, as_it_came, with_tokens};
use super::*;

/// What a later version may have in a request, which replicas are to get though the router knows nothing of it.
#[derive(Clone, PartialEq, prost::Message)]
struct Unknown {
    #[prost(string, repeated, tag = "11")]
    words: Vec<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "15")]
    numbers: Vec<u64>,
    #[prost(message, repeated, tag = "3000")]
    chats: Vec<ChatPrompt>,
}

/// What tokens take the place of, seen even if something behind it counts.
#[derive(Clone, PartialEq, prost::Message)]
struct Replaced {
    #[prost(string, repeated, tag = "3")]
    texts: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    chats: Vec<ChatPrompt>,
}

fn unknown() -> impl Strategy<Value = Unknown> {
    let parts = (
        vec(word(), 0..3),
        vec(any::<u64>(), 0..3),
        vec(chat(), 0..2),
    );
    parts.prop_map(|(words, numbers, chats)| Unknown {
        words,
        numbers,
        chats,
    })
}

/// An id about as long as any may be.
fn long_id() -> impl Strategy<Value = Vec<u8>> {
    "[aü]{126,131}".prop_map(|request_id| {
        let request = GenerateRequest {
            request_id,
            ..GenerateRequest::default()
        };
        request.encode_to_vec()
    })
}

/// Messages one behind another are one message, whose fields come repeatedly and in any order.
fn came() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => request().prop_map(|request| request.encode_to_vec()),
        2 => unknown().prop_map(|unknown| unknown.encode_to_vec()),
        1 => long_id(),
    ];
    vec(part, 0..4).prop_map(|parts| parts.concat())
}

/// A message's prefix is right; what it is by both readings.
fn read(sent: &[u8]) -> (GenerateRequest, Unknown) {
    let (prefix, message) = sent.split_at(PREFIX_BYTES);
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    assert_eq!(prefix, [&[0], &length[..]].concat());
    let request = GenerateRequest::decode(message).unwrap();
    (request, Unknown::decode(message).unwrap())
}

#[test]
fn replicas_get_what_came_but_for_the_model_the_id_and_the_tokens() {
    let began = Instant::now();
    let mut runner = TestRunner::new(Config::with_cases(5_000));
    let strategy = (came(), word(), "[0-9a-f]{4}", vec(any::<u32>(), 0..40));
    loop {
        runner
            .run(&strategy, |(came, model, made_id, tokens)| {
                let ours = Request::read(&came).unwrap();
                let mut request = GenerateRequest::decode(&*came).unwrap();
                let unknown = Unknown::decode(&*came).unwrap();
                request.model.clone_from(&model);
                request.request_id = match &*request.request_id {
                    "" => made_id.clone(),
                    id => id.chars().take(128).collect(),
                };
                let framed = [&[9; PREFIX_BYTES], &*came].concat();
                let sent = as_it_came(framed, &ours, &model, &made_id).unwrap();
                prop_assert_eq!(read(&sent), (request.clone(), unknown.clone()));

                let sent = with_tokens(&came, &tokens, &ours, &model, &made_id).unwrap();
                request.prompt = Some(Prompt::Tokens(TokenPrompt { ids: tokens }));
                prop_assert_eq!(read(&sent), (request, unknown));
                let replaced = Replaced::decode(&sent[PREFIX_BYTES..]).unwrap();
                prop_assert_eq!(replaced, Replaced::default());
                Ok(())
            })
            .unwrap();
        if began.elapsed() >= seconds() {
            return;
        }
    }
}
