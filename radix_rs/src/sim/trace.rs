//! What was asked, when, and which prompts begin alike.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use thiserror::Error;

use crate::chain::NO_PARENT;
use crate::pick::mix;

/// A block of the trace by the order of first mention.
pub(super) type BlockId = u32;

/// One line of a trace.
#[derive(Clone, Debug)]
pub struct Request {
    /// Seconds since the trace's beginning.
    pub arrived_s: f64,
    /// Of the prompt; at least 1.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub output_tokens: u64,
    blocks: Range<usize>,
}

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TraceError {
    /// There is nothing to compute.
    #[error("the prompt has 0 tokens, expected at least 1")]
    EmptyPrompt,
    /// As many blocks as the tokens fill, or one more for what is left.
    #[error(
        "{found} block hashes for {tokens} tokens, expected {expected}, each of {block_size} tokens but the last"
    )]
    NumBlocks {
        /// Tokens of the prompt.
        tokens: u64,
        /// Tokens in a block.
        block_size: u32,
        /// Blocks it has then.
        expected: u64,
        /// Blocks it came with.
        found: usize,
    },
    /// A hash must name its block with all before it.
    #[error(
        "block {hash} {found} here and {expected} before, expected a hash of the block with all that comes before it"
    )]
    TwoParents {
        /// The block.
        hash: u64,
        /// What was before it where it came first.
        expected: Before,
        /// What is before it here.
        found: Before,
    },
    /// Time goes on.
    #[error("it comes at {found_s} s, after one at {before_s} s: expected the order of arrival")]
    Order {
        /// Of the request before, as text because it is for people alone.
        before_s: String,
        /// Of this one.
        found_s: String,
    },
}

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// At a prompt's beginning.
    Nothing,
    /// After this one.
    Block(u64),
}

impl fmt::Display for Before {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(out, "begins a prompt"),
            Self::Block(hash) => write!(out, "follows {hash}"),
        }
    }
}

/// Requests in the order of their arrival, with blocks of one size.
#[derive(Debug)]
pub struct Trace {
    block_size: u32,
    requests: Vec<Request>,
    /// Of all requests, one after another.
    blocks: Vec<BlockId>,
    numbers: HashMap<u64, BlockId>,
    /// As the trace calls them.
    hashes: Vec<u64>,
    /// By block: the one before it.
    parents: Vec<Option<BlockId>>,
}

impl Trace {
    /// Without requests; `block_size` at least 1.
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size: block_size.max(1),
            requests: Vec::new(),
            blocks: Vec::new(),
            numbers: HashMap::new(),
            hashes: Vec::new(),
            parents: Vec::new(),
        }
    }

    /// Adds the next request.
    ///
    /// # Errors
    /// What is wrong with it; it is then left out.
    pub fn push(
        &mut self,
        arrived_s: f64,
        prompt_tokens: u64,
        output_tokens: u64,
        hashes: &[u64],
    ) -> Result<(), TraceError> {
        self.check(arrived_s, prompt_tokens, hashes)?;
        let start = self.blocks.len();
        let mut parent = None;
        for &hash in hashes {
            let block = match self.numbers.get(&hash) {
                Some(&block) if self.parents[block as usize] == parent => block,
                Some(&block) => {
                    self.blocks.truncate(start);
                    let before = |parent: Option<BlockId>| {
                        parent.map_or(Before::Nothing, |at| {
                            Before::Block(self.hashes[at as usize])
                        })
                    };
                    return Err(TraceError::TwoParents {
                        hash,
                        expected: before(self.parents[block as usize]),
                        found: before(parent),
                    });
                }
                None => self.add_block(hash, parent),
            };
            self.blocks.push(block);
            parent = Some(block);
        }
        self.requests.push(Request {
            arrived_s,
            prompt_tokens,
            output_tokens,
            blocks: start..self.blocks.len(),
        });
        Ok(())
    }

    fn check(&self, arrived_s: f64, tokens: u64, hashes: &[u64]) -> Result<(), TraceError> {
        if tokens == 0 {
            return Err(TraceError::EmptyPrompt);
        }
        if let Some(last) = self.requests.last()
            && arrived_s < last.arrived_s
        {
            return Err(TraceError::Order {
                before_s: last.arrived_s.to_string(),
                found_s: arrived_s.to_string(),
            });
        }
        let size = u64::from(self.block_size);
        let found = hashes.len();
        if ![tokens / size, tokens.div_ceil(size)].contains(&(found as u64)) {
            return Err(TraceError::NumBlocks {
                tokens,
                block_size: self.block_size,
                expected: tokens.div_ceil(size),
                found,
            });
        }
        Ok(())
    }

    fn add_block(&mut self, hash: u64, parent: Option<BlockId>) -> BlockId {
        let block = BlockId::try_from(self.hashes.len()).expect("fewer than 2^32 blocks in memory");
        self.numbers.insert(hash, block);
        self.hashes.push(hash);
        self.parents.push(parent);
        block
    }

    /// In the order of their arrival.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Different blocks.
    pub fn num_blocks(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn blocks(&self, request: &Request) -> &[BlockId] {
        &self.blocks[request.blocks.clone()]
    }

    pub(super) fn parent(&self, block: BlockId) -> Option<BlockId> {
        self.parents[block as usize]
    }
}

/// What deltas call a block. It need not be keyed here, but must spread as a hash does and not be [`NO_PARENT`].
pub(super) fn chain_hash(block: BlockId) -> u64 {
    mix(u64::from(block) + 1)
}

pub(super) fn parent_hash(parent: Option<BlockId>) -> u64 {
    parent.map_or(NO_PARENT, chain_hash)
}
