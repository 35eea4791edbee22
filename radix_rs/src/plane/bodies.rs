//! The forms in which replicas get a request.

use std::sync::Arc;

use bytes::Bytes;

use super::memory::Held;
use super::replicas::Replica;
use super::request::{PREFIX_BYTES, Request, as_it_came, ids, with_tokens};
use super::status::Refusal;
use crate::pick::{Hashed, Pick, Prompt as Asked, Router};

/// A request's prompt, as trees know it.
pub(crate) struct Prompt {
    pub model: Arc<str>,
    pub num_tokens: usize,
    /// Its ids, unless they stand in the message.
    pub tokens: Vec<u32>,
    /// Of the tokenizer that made them of text, if one did.
    pub tokenizer_digest: Option<Vec<u8>>,
}

/// The message as it came, behind room for its prefix.
pub(crate) enum Came {
    /// Nobody else has it: what is to be added is put behind it.
    Own(Vec<u8>),
    Shared(Bytes),
    /// With all that is to be added.
    Ready(Bytes),
}

/// The request as replicas get it, made when one is to get it.
pub(crate) struct Bodies {
    came: Came,
    request: Request,
    pub prompt: Prompt,
    /// Its chain and the size of its blocks, once it was hashed.
    chain: Option<(Vec<u64>, u32)>,
    made_id: String,
    /// What was made for replicas of the same tokenizer, and for others; kept for another try.
    with_tokens: Option<Bytes>,
    for_others: Option<Bytes>,
    held: Held,
}

impl Bodies {
    /// `made_id`: for a request that has none. `held`: for all that is here.
    pub fn new(came: Came, request: Request, prompt: Prompt, made_id: String, held: Held) -> Self {
        Self {
            came,
            request,
            prompt,
            chain: None,
            made_id,
            with_tokens: None,
            for_others: None,
            held,
        }
    }

    /// The replica for it, where it is in flight from now on; None if none can be picked. Calls `matched` once it is
    /// known how much each one holds.
    ///
    /// # Errors
    /// There is no memory left for the chain.
    pub fn pick(
        &mut self,
        router: &Router,
        exclude: &[String],
        now_s: f64,
        matched: &mut dyn FnMut(),
    ) -> Result<Option<Pick>, Refusal> {
        let model = &self.prompt.model;
        let known = self.chain.as_ref();
        if known.is_none_or(|(_, size)| router.block_size(model) != Some(*size)) {
            self.chain = if self.prompt.tokens.is_empty() {
                router.hash(self.asked(&ids(self.message())))
            } else {
                router.hash(self.asked(&self.prompt.tokens))
            };
            let chain = self.chain.as_ref();
            self.held
                .add(chain.map_or(0, |(chain, _)| size_of_val(&**chain)))?;
        }
        let Some((chain, block_size)) = &self.chain else {
            return Ok(None);
        };
        let hashed = Hashed {
            model: &self.prompt.model,
            chain,
            block_size: *block_size,
            tokens: self.prompt.num_tokens as u64,
        };
        Ok(router.pick_hashed(&hashed, exclude, now_s, matched))
    }

    fn asked<'a, T>(&'a self, tokens: &'a [T]) -> Asked<'a, T> {
        Asked {
            tokens,
            model: &self.prompt.model,
            extra_key: &self.request.extra_key,
            cache_salt: &self.request.cache_salt,
        }
    }

    fn message(&self) -> &[u8] {
        let framed = match &self.came {
            Came::Own(framed) => framed,
            Came::Shared(framed) | Came::Ready(framed) => &**framed,
        };
        &framed[PREFIX_BYTES..]
    }

    /// With the prompt's tokens where they mean the same; elsewhere as it came.
    pub fn of(&mut self, replica: &Replica) -> Result<Bytes, Refusal> {
        let (request, prompt, id) = (&self.request, &self.prompt, &*self.made_id);
        let is_same = prompt.tokenizer_digest.as_ref() == Some(&replica.spec.tokenizer_digest);
        if let (true, Came::Shared(framed)) = (is_same, &self.came) {
            let body = if let Some(body) = self.with_tokens.take() {
                body
            } else {
                self.held.add(framed.len() + size_of_val(&*prompt.tokens))?;
                let message = &framed[PREFIX_BYTES..];
                with_tokens(message, &prompt.tokens, request, &prompt.model, id)?
            };
            self.with_tokens = Some(body.clone());
            return Ok(body);
        }
        let body = match &mut self.came {
            Came::Own(framed) => as_it_came(std::mem::take(framed), request, &prompt.model, id)?,
            Came::Shared(framed) => {
                let body = if let Some(body) = self.for_others.take() {
                    body
                } else {
                    self.held.add(framed.len())?;
                    as_it_came(framed.to_vec(), request, &prompt.model, id)?
                };
                self.for_others = Some(body.clone());
                return Ok(body);
            }
            Came::Ready(body) => body.clone(),
        };
        self.came = Came::Ready(body.clone());
        Ok(body)
    }

    /// An answer has begun: nobody else will be asked, and what was kept for that goes.
    pub fn answered(&mut self) {
        self.came = Came::Ready(Bytes::new());
        self.with_tokens = None;
        self.for_others = None;
        self.prompt.tokens = Vec::new();
        self.chain = None;
        let _ = self.held.set(0); // less than before
    }

    pub fn request_id(&self) -> &str {
        if self.made_id.is_empty() {
            self.request.cut_id()
        } else {
            &self.made_id
        }
    }
}
