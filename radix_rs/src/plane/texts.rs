//! Makes tokens of texts and chats, beside the shards: a long one takes tens of milliseconds.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::oneshot;

use super::work::{Lane, Work};
use crate::error::TextError;
use crate::text::{Message, Namespace, TextCodec};

/// From here on a prompt is long.
const LONG_BYTES: usize = 32 << 10;

/// A prompt that is to be tokenised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    Text(String),
    Chat(Vec<Message>),
}

impl Words {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Chat(messages) => messages
                .iter()
                .map(|each| each.role.len() + each.content.len())
                .sum(),
        }
    }
}

/// The tokenizer of a model, and its name.
#[derive(Clone, Debug)]
pub(crate) struct ModelText {
    pub digest: Vec<u8>,
    pub codec: Arc<TextCodec>,
}

#[derive(Default)]
pub(crate) struct Texts {
    models: RwLock<HashMap<String, ModelText>>,
}

impl Texts {
    /// Makes tokens of the model's texts by this tokenizer from now on; without one, others do.
    pub fn set(&self, model: &str, text: Option<ModelText>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        match text {
            Some(text) => models.insert(model.to_owned(), text),
            None => models.remove(model),
        };
    }

    pub fn of(&self, model: &str) -> Option<ModelText> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.get(model).cloned()
    }
}

/// Where the tokens will come; who no longer waits drops it.
pub(crate) fn tokenise(
    work: &Work,
    codec: Arc<TextCodec>,
    words: Words,
    namespace: Namespace<'_>,
) -> oneshot::Receiver<Result<Vec<u32>, TextError>> {
    let lane = if words.bytes() >= LONG_BYTES {
        Lane::Texts
    } else {
        Lane::Short
    };
    let extra_key = namespace.extra_key.to_owned();
    let cache_salt = namespace.cache_salt.to_owned();
    work.run(lane, move || {
        let namespace = Namespace {
            extra_key: &extra_key,
            cache_salt: &cache_salt,
        };
        let tokens = match &words {
            Words::Text(text) => codec.encode(namespace, text)?,
            Words::Chat(messages) => codec.encode_chat(namespace, messages)?,
        };
        if tokens.is_empty() {
            return Err(TextError::Empty);
        }
        Ok(tokens)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TextRules;

    const TOKENIZER: &str = r#"{
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    }"#;

    fn codec() -> Arc<TextCodec> {
        let rules = TextRules {
            chat_template: "{{ messages[0].content }}b".to_owned(),
            ..TextRules::default()
        };
        Arc::new(TextCodec::new(TOKENIZER.as_bytes(), rules).unwrap())
    }

    fn ask(work: &Work, words: Words) -> oneshot::Receiver<Result<Vec<u32>, TextError>> {
        tokenise(work, codec(), words, Namespace::default())
    }

    fn text(text: &str) -> Words {
        Words::Text(text.to_owned())
    }

    fn chat(content: &str) -> Words {
        Words::Chat(vec![Message {
            role: "user".to_owned(),
            content: content.to_owned(),
        }])
    }

    #[test]
    fn texts_and_chats_become_tokens() {
        let work = Arc::<Work>::default();
        let threads = work.start().unwrap();
        for (words, tokens) in [
            (text("ab"), Ok(vec![0, 1])),
            (chat("aa"), Ok(vec![0, 0, 1])),
            (text(""), Err(TextError::Empty)),
            (text(&"a".repeat(LONG_BYTES)), Ok(vec![0; LONG_BYTES])),
        ] {
            assert_eq!(ask(&work, words).blocking_recv().unwrap(), tokens);
        }
        work.stop();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_model_has_a_tokenizer_until_it_has_none() {
        let texts = Texts::default();
        let digest = vec![1];
        texts.set(
            "m",
            Some(ModelText {
                digest,
                codec: codec(),
            }),
        );
        assert_eq!(texts.of("m").unwrap().digest, [1]);
        texts.set("m", None);
        assert!(texts.of("m").is_none());
    }
}
