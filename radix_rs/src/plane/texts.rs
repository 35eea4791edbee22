//! Makes tokens of texts and chats, beside the shards: a long one takes tens of milliseconds.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::spawn;
use crate::error::TextError;
use crate::text::{Message, Namespace, TextCodec};

/// From here on a prompt is long: those take turns, so that one thread stays free for the others.
const LONG_BYTES: usize = 32 << 10;

/// A prompt that is to be tokenised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    Text(String),
    Chat(Vec<Message>),
}

impl Words {
    fn bytes(&self) -> usize {
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

/// One prompt, and who waits for its tokens.
struct Job {
    codec: Arc<TextCodec>,
    words: Words,
    extra_key: String,
    cache_salt: String,
    answer: oneshot::Sender<Result<Vec<u32>, TextError>>,
}

#[derive(Default)]
struct Queue {
    short: VecDeque<Job>,
    long: VecDeque<Job>,
    is_over: bool,
}

#[derive(Default)]
pub(crate) struct Texts {
    models: RwLock<HashMap<String, ModelText>>,
    queue: Mutex<Queue>,
    comes: Condvar,
}

impl Texts {
    /// Two threads: one for the long prompt whose turn it is, one that never takes such.
    pub fn start(self: &Arc<Self>) -> io::Result<Vec<JoinHandle<()>>> {
        [true, false]
            .into_iter()
            .map(|takes_long| {
                let texts = self.clone();
                spawn("texts", move || texts.work(takes_long))
            })
            .collect()
    }

    /// Ends the threads; who waits is told that nobody answers.
    pub fn stop(&self) {
        let mut queue = self.queue();
        queue.is_over = true;
        queue.short.clear();
        queue.long.clear();
        self.comes.notify_all();
    }

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

    /// Where the tokens will come; who no longer waits drops it.
    pub fn tokenise(
        &self,
        codec: Arc<TextCodec>,
        words: Words,
        namespace: Namespace<'_>,
    ) -> oneshot::Receiver<Result<Vec<u32>, TextError>> {
        let (answer, tokens) = oneshot::channel();
        let is_long = words.bytes() >= LONG_BYTES;
        let job = Job {
            codec,
            words,
            extra_key: namespace.extra_key.to_owned(),
            cache_salt: namespace.cache_salt.to_owned(),
            answer,
        };
        let mut queue = self.queue();
        if queue.is_over {
            return tokens;
        }
        if is_long {
            queue.long.push_back(job);
        } else {
            queue.short.push_back(job);
        }
        // All, as the one that wakes may be the one that does not take it.
        self.comes.notify_all();
        tokens
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, takes_long: bool) {
        while let Some(job) = self.next(takes_long) {
            if !job.answer.is_closed() {
                let tokens = job.tokens();
                let _ = job.answer.send(tokens); // who asked may have left
            }
        }
    }

    /// Waits for one; None: there will be no more.
    fn next(&self, takes_long: bool) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if queue.is_over {
                return None;
            }
            let long = if takes_long {
                queue.long.pop_front()
            } else {
                None
            };
            if let Some(job) = long.or_else(|| queue.short.pop_front()) {
                return Some(job);
            }
            queue = self
                .comes
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Job {
    fn tokens(&self) -> Result<Vec<u32>, TextError> {
        let namespace = Namespace {
            extra_key: &self.extra_key,
            cache_salt: &self.cache_salt,
        };
        let tokens = match &self.words {
            Words::Text(text) => self.codec.encode(namespace, text)?,
            Words::Chat(messages) => self.codec.encode_chat(namespace, messages)?,
        };
        if tokens.is_empty() {
            return Err(TextError::Empty);
        }
        Ok(tokens)
    }
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

    fn ask(texts: &Texts, words: Words) -> oneshot::Receiver<Result<Vec<u32>, TextError>> {
        texts.tokenise(codec(), words, Namespace::default())
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
        let texts = Arc::<Texts>::default();
        let threads = texts.start().unwrap();
        assert_eq!(
            ask(&texts, text("ab")).blocking_recv().unwrap(),
            Ok(vec![0, 1])
        );
        assert_eq!(
            ask(&texts, chat("aa")).blocking_recv().unwrap(),
            Ok(vec![0, 0, 1])
        );
        assert_eq!(
            ask(&texts, text("")).blocking_recv().unwrap(),
            Err(TextError::Empty)
        );
        texts.stop();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(ask(&texts, text("a")).blocking_recv().is_err());
    }

    #[test]
    fn one_thread_never_takes_a_long_prompt_and_the_other_takes_it_first() {
        let texts = Texts::default();
        let _short = ask(&texts, text("a"));
        let _long = ask(&texts, text(&"a".repeat(LONG_BYTES)));
        let is_long = |job: Option<Job>| job.unwrap().words.bytes() >= LONG_BYTES;
        assert!(is_long(texts.next(true)));
        let _long = ask(&texts, chat(&"a".repeat(LONG_BYTES)));
        assert!(!is_long(texts.next(false)));
        assert!(is_long(texts.next(true)));
    }

    #[test]
    fn who_waits_is_told_when_it_is_over() {
        let texts = Texts::default();
        let waiting = ask(&texts, text("a"));
        texts.stop();
        assert!(waiting.blocking_recv().is_err());
        assert!(texts.next(true).is_none());
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
