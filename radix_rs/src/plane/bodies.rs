//! The forms in which replicas get a request.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::replicas::Replica;
use super::request::{PREFIX_BYTES, Request, as_it_came, with_tokens};
use super::status::Refusal;

/// A request's prompt, as trees know it.
pub(crate) struct Prompt {
    pub model: Arc<str>,
    pub tokens: Vec<u32>,
    /// Of the tokenizer that made them of text, if one did.
    pub tokenizer_digest: Option<Vec<u8>>,
}

/// The message as it came, behind room for its prefix.
pub(crate) enum Came {
    /// Nobody else has it: what is to be added is put behind it.
    Own(BytesMut),
    Shared(Bytes),
    /// With all that is to be added.
    Ready(Bytes),
}

/// The request as replicas get it, made when one is to get it.
pub(crate) struct Bodies<'a> {
    came: Came,
    pub request: &'a Request,
    pub prompt: &'a Prompt,
    made_id: &'a str,
    with_tokens: Option<Bytes>,
}

impl<'a> Bodies<'a> {
    /// `made_id`: for a request that has none.
    pub fn new(came: Came, request: &'a Request, prompt: &'a Prompt, made_id: &'a str) -> Self {
        Self {
            came,
            request,
            prompt,
            made_id,
            with_tokens: None,
        }
    }

    /// With the prompt's tokens where they mean the same; elsewhere as it came.
    pub fn of(&mut self, replica: &Replica) -> Result<Bytes, Refusal> {
        let (request, prompt, id) = (self.request, self.prompt, self.made_id);
        let is_same = prompt.tokenizer_digest.as_ref() == Some(&replica.spec.tokenizer_digest);
        if let (true, Came::Shared(framed)) = (is_same, &self.came) {
            let body = if let Some(body) = self.with_tokens.take() {
                body
            } else {
                let message = &framed[PREFIX_BYTES..];
                with_tokens(message, &prompt.tokens, request, &prompt.model, id)?
            };
            self.with_tokens = Some(body.clone());
            return Ok(body);
        }
        let body = match &mut self.came {
            Came::Own(framed) => as_it_came(std::mem::take(framed), request, &prompt.model, id)?,
            Came::Shared(framed) => {
                let framed = BytesMut::from(&framed[..]);
                return as_it_came(framed, request, &prompt.model, id);
            }
            Came::Ready(body) => body.clone(),
        };
        self.came = Came::Ready(body.clone());
        Ok(body)
    }

    pub fn request_id(&self) -> &str {
        if self.made_id.is_empty() {
            &self.request.id
        } else {
            self.made_id
        }
    }
}
