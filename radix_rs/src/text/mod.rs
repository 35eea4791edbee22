//! How text and chats become token ids: the same as the replicas make of them.

mod blanks;
mod known;
mod python_json;
mod segments;
mod special_tokens;
mod template;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::{AddedToken, DecoderWrapper, Tokenizer};

use crate::error::TextError;
use known::Known;
use segments::Segments;
use special_tokens::{SpecialTokens, unused_mark};
use template::ChatTemplate;

/// What a model's text is made into tokens by, beside its tokenizer.
#[derive(Clone, Debug, Default)]
pub struct TextRules {
    /// Jinja2. Empty: the model has no chat template.
    pub chat_template: String,
    /// Its text.
    pub bos_token: String,
    /// Its text.
    pub eos_token: String,
    /// Text prompts get the begin-of-sequence token.
    pub add_bos: bool,
}

/// Whose text it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespace<'a> {
    /// As in the request.
    pub extra_key: &'a str,
    /// As in the request.
    pub cache_salt: &'a str,
}

/// One turn of a chat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct TextCodec {
    tokenizer: Tokenizer,
    segments: Segments,
    known: Known,
    special: SpecialTokens,
    bos: Option<u32>,
    template: Option<ChatTemplate>,
}

impl TextCodec {
    /// `tokenizer_json` as the `tokenizers` crate reads it, with a byte-level decoder.
    ///
    /// # Errors
    ///
    /// If it is no such tokenizer, lacks the begin-of-sequence token, or the template does not compile.
    pub fn new(tokenizer_json: &[u8], rules: TextRules) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_bytes(tokenizer_json)
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(TextError::NotByteLevel);
        }
        let bos = if rules.add_bos {
            let id = tokenizer.token_to_id(&rules.bos_token);
            Some(id.ok_or_else(|| TextError::NoBos(rules.bos_token.clone()))?)
        } else {
            None
        };
        let added: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        let special = added.iter().filter(|token| token.special);
        Ok(Self {
            segments: Segments::new(&added),
            known: Known::new(),
            special: SpecialTokens::new(special.map(|token| token.content.clone())),
            bos,
            template: match rules.chat_template.as_str() {
                "" => None,
                _ => Some(ChatTemplate::compile(rules)?),
            },
            tokenizer,
        })
    }

    /// Token ids of a text prompt, after the begin-of-sequence token if the model wants one.
    ///
    /// Special tokens in it count as such: a text is the whole prompt as its sender wants it.
    ///
    /// # Errors
    ///
    /// If the tokenizer refuses it.
    pub fn encode(&self, namespace: Namespace<'_>, text: &str) -> Result<Vec<u32>, TextError> {
        unless_it_panics(|| {
            let mut ids: Vec<u32> = self.bos.into_iter().collect();
            self.append(&mut ids, namespace, text)?;
            Ok(ids)
        })
    }

    /// Token ids of a chat as the model's template writes it, ready for the assistant's answer.
    ///
    /// Only the template's special tokens count as such; in a role or content they are plain text.
    ///
    /// # Errors
    ///
    /// If there is no message, no template, or the template refuses the chat.
    pub fn encode_chat(
        &self,
        namespace: Namespace<'_>,
        messages: &[Message],
    ) -> Result<Vec<u32>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        if messages.is_empty() {
            return Err(TextError::NoMessages);
        }
        unless_it_panics(|| {
            let written = messages
                .iter()
                .flat_map(|each| [each.role.as_str(), each.content.as_str()]);
            let mark = unused_mark(written.chain([template.source()]));
            let cut: Vec<Message> = messages
                .iter()
                .map(|each| Message {
                    role: self.special.split(&each.role, mark),
                    content: self.special.split(&each.content, mark),
                })
                .collect();
            let mut ids = Vec::new();
            for piece in template.render(&cut)?.split(mark) {
                self.append(&mut ids, namespace, piece)?;
            }
            Ok(ids)
        })
    }

    fn append(
        &self,
        ids: &mut Vec<u32>,
        namespace: Namespace<'_>,
        piece: &str,
    ) -> Result<(), TextError> {
        for segment in self.segments.of(piece) {
            let encoded = self.known.ids(namespace, segment, || {
                let encoding = self.tokenizer.encode_fast(segment, false);
                encoding.map(|encoding| encoding.get_ids().into())
            });
            ids.extend_from_slice(&encoded.map_err(|error| TextError::Refused(error.to_string()))?);
        }
        Ok(())
    }
}

/// Tokenizers and templates are written by others, and so is what they are given: what panics there fails the one
/// prompt, not the thread.
fn unless_it_panics<T>(work: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(TextError::Panicked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_fails_one_prompt() {
        let failed = unless_it_panics::<()>(|| panic!("on purpose"));
        assert_eq!(failed, Err(TextError::Panicked));
    }
}
