//! The router's state, shared between threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::answers::{BreakerReading, Explained, MirrorStats, Pick};
use super::batch::{Applied, Applying, decode};
use super::block_set::BlockSet;
use super::core::{Core, Hashed};
use super::policy::{PolicyKind, Rules};
use super::turns::Turns;
use crate::chain::{HashKey, TokenId, extend_chain, namespace_seed};
use crate::delta::Load;
use crate::error::RouterError;
use crate::index::{Errand, Matches, ReplicaId};

/// What a router is made with.
#[derive(Clone)]
pub struct Settings {
    /// The cluster's.
    pub hash_key: HashKey,
    /// By what it picks at first.
    pub rules: Rules,
    /// Spreads ties.
    pub seed: u64,
}

impl Settings {
    /// A policy with the usual weights.
    pub fn new(hash_key: HashKey, policy: PolicyKind) -> Self {
        Self {
            hash_key,
            rules: Rules::new(policy),
            seed: 0,
        }
    }
}

/// A prompt and its namespace.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a, T = u32> {
    /// Its token ids.
    pub tokens: &'a [T],
    /// The model it is for.
    pub model: &'a str,
    /// Part of the namespace; may be empty.
    pub extra_key: &'a str,
    /// Part of the namespace; may be empty.
    pub cache_salt: &'a str,
}

/// Index, load table, prompts in flight and policy behind one lock: hashing and decoding happen before it is taken,
/// and who applies a batch gives it up within microseconds once a prompt waits to be picked.
/// Callers see no lock, so it can be replaced.
pub struct Router {
    hash_key: HashKey,
    core: Turns<Core>,
    /// Held over all steps of a batch, by who changes mirrors and who must not see one half-changed.
    batches: Mutex<()>,
}

/// What is done for the index without the lock. It comes back even if that panics: without it no batch could be
/// applied any more.
struct Away<'a> {
    router: &'a Router,
    errand: Errand,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let errand = std::mem::take(&mut self.errand);
        self.router.core().index.done(errand);
    }
}

impl Router {
    /// A router without replicas.
    pub fn new(settings: &Settings) -> Self {
        Self {
            hash_key: settings.hash_key.clone(),
            core: Turns::new(Core::new(&settings.rules, settings.seed)),
            batches: Mutex::new(()),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.take()
    }

    pub(super) fn between_batches(&self) -> MutexGuard<'_, ()> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes steps as long as there are any; who waits meanwhile goes first, and what concerns no prompt is done
    /// without the lock. For who holds `batches`.
    pub(super) fn go_on(&self, mut step: impl FnMut(&mut Core) -> bool) {
        let mut core = self.core();
        let mut goes_on = true;
        while goes_on {
            goes_on = step(&mut core);
            let errand = core.index.errand();
            if errand.is_some() || self.core.is_wanted() {
                drop(core);
                if let Some(errand) = errand {
                    let router = self;
                    Away { router, errand }.errand.run();
                }
                self.core.give_way();
                core = self.core();
            }
        }
    }

    fn apply_all(&self, mut work: Applying) -> Applied {
        self.go_on(|core| core.step(&mut work));
        work.applied
    }

    fn clear_all(&self, id: ReplicaId) {
        let mut from = 0;
        self.go_on(|core| core.index.clear_step(id, &mut from).1);
    }

    /// Adds a replica with an empty mirror that cannot be picked yet.
    ///
    /// # Errors
    /// The name is known, or the block size is 0 or not that of the model's other replicas.
    pub fn add_replica(&self, name: &str, model: &str, block_size: u32) -> Result<(), RouterError> {
        let _whole = self.between_batches();
        self.core().add_replica(name, model, block_size)
    }

    /// Forgets a replica, its mirror and its prompts in flight.
    pub fn remove_replica(&self, name: &str) {
        let _whole = self.between_batches();
        let removed = self.core().remove_replica(name);
        if let Some(id) = removed {
            self.clear_all(id);
            self.core().index.remove_replica(id);
        }
    }

    /// Picks by these rules from now on.
    pub fn follow(&self, rules: &Rules) {
        self.core().follow(rules);
    }

    /// Whether it can be picked, unless it drains. Ends a doubt.
    ///
    /// # Errors
    /// Unknown replica, as for all that name one.
    pub fn set_eligible(&self, name: &str, eligible: bool) -> Result<(), RouterError> {
        self.core().set_eligible(name, eligible)
    }

    /// It is picked only where there are none but such, until somebody says whether it is eligible.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn doubt(&self, name: &str) -> Result<(), RouterError> {
        self.core().doubt(name)
    }

    /// What its answers say of a replica.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn breaker(&self, name: &str, now_s: f64) -> Result<BreakerReading, RouterError> {
        self.core().breaker(name, now_s)
    }

    /// How often a replica was picked although its answers spoke against it, as they did against all.
    pub fn last_resorts(&self) -> u64 {
        self.core().last_resorts()
    }

    /// Applies a serialised batch.
    ///
    /// # Errors
    /// Unknown replica, malformed bytes, another block size or hash version; nothing has changed then.
    pub fn apply(&self, name: &str, bytes: &[u8]) -> Result<Applied, RouterError> {
        let batch = decode(name, bytes)?;
        let _whole = self.between_batches();
        let work = self.core().begin(name, batch)?;
        Ok(self.apply_all(work))
    }

    /// Applies a chunk of a snapshot to a cleared mirror.
    ///
    /// # Errors
    /// As for `apply`; also a mirror that is not cleared, or a chunk of another snapshot.
    pub fn apply_snapshot(
        &self,
        name: &str,
        bytes: &[u8],
        last: bool,
    ) -> Result<Applied, RouterError> {
        let batch = decode(name, bytes)?;
        let _whole = self.between_batches();
        let work = self.core().begin_snapshot(name, batch, last)?;
        Ok(self.apply_all(work))
    }

    /// Forgets the mirror's blocks, epoch and seq.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn clear(&self, name: &str) -> Result<(), RouterError> {
        let _whole = self.between_batches();
        let id = self.core().clear(name)?;
        self.clear_all(id);
        Ok(())
    }

    /// Where the mirror stands.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn mirror(&self, name: &str) -> Result<MirrorStats, RouterError> {
        let _whole = self.between_batches();
        self.core().mirror(name)
    }

    /// Bounds the memory of the index, which at first is unbounded; what is over it is forgotten.
    pub fn set_index_max_bytes(&self, max_bytes: usize) {
        let _whole = self.between_batches();
        self.core().index.set_max_bytes(max_bytes);
    }

    /// The bound; `usize::MAX` if there is none.
    pub fn index_max_bytes(&self) -> usize {
        self.core().index.max_bytes()
    }

    /// Bytes the index takes.
    pub fn index_size_bytes(&self) -> usize {
        self.core().index.size_bytes()
    }

    /// Its mirror's share of them, roughly.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn mirror_size_bytes(&self, name: &str) -> Result<u64, RouterError> {
        self.core().mirror_size_bytes(name)
    }

    /// The newest load.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn load(&self, name: &str) -> Result<Load, RouterError> {
        self.core().load(name)
    }

    /// Its mirror's blocks as of one batch. Looks at every run; the rest is done without the lock.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn block_set(&self, name: &str) -> Result<BlockSet, RouterError> {
        let (mirror, hashes) = {
            let _whole = self.between_batches();
            let core = self.core();
            (core.mirror(name)?, core.blocks(name)?)
        };
        Ok(BlockSet::new(
            mirror.epoch,
            mirror.seq,
            mirror.forgotten,
            hashes,
        ))
    }

    /// The hashes in its mirror, sorted.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn blocks(&self, name: &str) -> Result<Vec<u64>, RouterError> {
        let mut blocks = {
            let _whole = self.between_batches();
            self.core().blocks(name)?
        };
        blocks.sort_unstable();
        Ok(blocks)
    }

    /// Requests picked there and not released.
    ///
    /// # Errors
    /// Unknown replica.
    pub fn in_flight(&self, name: &str) -> Result<u32, RouterError> {
        self.core().in_flight_requests(name)
    }

    /// The replica for a prompt, which is in flight there from now on; None if none can be picked.
    pub fn pick(&self, prompt: Prompt<'_>, exclude: &[String], now_s: f64) -> Option<Pick> {
        let (chain, block_size) = self.hash(prompt)?;
        let hashed = hashed(prompt, &chain, block_size);
        self.pick_hashed(&hashed, exclude, now_s, &mut || ())
    }

    /// As `pick`; calls `matched` once it is known how much each replica holds. Others wait meanwhile. None, too, if
    /// the model's blocks are of another size by now.
    pub(crate) fn pick_hashed(
        &self,
        prompt: &Hashed<'_>,
        exclude: &[String],
        now_s: f64,
        matched: &mut dyn FnMut(),
    ) -> Option<Pick> {
        let mut core = self.core();
        if core.block_size(prompt.model) != Some(prompt.block_size) {
            return None;
        }
        core.pick(prompt, exclude, now_s, matched)
    }

    /// What `pick` would say, with ticket 0; leaves everything as it is.
    pub fn peek(&self, prompt: Prompt<'_>, now_s: f64) -> Option<Pick> {
        let (chain, block_size) = self.hash(prompt)?;
        let hashed = hashed(prompt, &chain, block_size);
        self.core().peek(&hashed, now_s)
    }

    /// Every replica of the model with its figures, by name.
    pub fn explain(&self, prompt: Prompt<'_>, now_s: f64) -> Vec<Explained> {
        let Some((chain, block_size)) = self.hash(prompt) else {
            return Vec::new();
        };
        let hashed = hashed(prompt, &chain, block_size);
        self.core().explain(&hashed, now_s)
    }

    /// Leading blocks that each replica of the model holds, of a prompt that is hashed already; false if nobody
    /// serves that model.
    pub fn walk(&self, model: &str, chain: &[u64], matches: &mut Matches) -> bool {
        self.core().walk(model, chain, matches)
    }

    /// The prompt's prefill is done, as its answer begins; true if that closes the replica's breaker.
    pub fn prefilled(&self, ticket: u64) -> bool {
        self.core().prefilled(ticket)
    }

    /// The request failed, through its replica's fault; true if that opens the breaker.
    pub fn failed(&self, ticket: u64, now_s: f64) -> bool {
        self.core().failed(ticket, now_s)
    }

    /// The replica turned the request away because it has too much to do: it is passed over until `until_s`.
    pub fn overloaded(&self, ticket: u64, until_s: f64) {
        self.core().overloaded(ticket, until_s);
    }

    /// The request ended, however it did.
    pub fn release(&self, ticket: u64) {
        self.core().release(ticket);
    }

    /// Computes every invariant of the index anew.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn check(&self) -> Result<(), RouterError> {
        let _whole = self.between_batches();
        self.core().check()
    }

    /// The size of a model's blocks, in tokens; None if nobody serves that.
    pub(crate) fn block_size(&self, model: &str) -> Option<u32> {
        self.core().block_size(model)
    }

    /// The prompt's chain in blocks of its model, and their size; None if nobody serves that.
    pub(crate) fn hash<T: TokenId>(&self, prompt: Prompt<'_, T>) -> Option<(Vec<u64>, u32)> {
        let block_size = self.block_size(prompt.model)?;
        let key = &self.hash_key;
        let seed = namespace_seed(key, prompt.model, prompt.extra_key, prompt.cache_salt);
        let mut chain = Vec::with_capacity(prompt.tokens.len() / block_size as usize);
        extend_chain(key, seed, prompt.tokens, block_size as usize, &mut chain);
        Some((chain, block_size))
    }
}

fn hashed<'a>(prompt: Prompt<'a>, chain: &'a [u64], block_size: u32) -> Hashed<'a> {
    Hashed {
        model: prompt.model,
        chain,
        block_size,
        tokens: prompt.tokens.len() as u64,
    }
}
