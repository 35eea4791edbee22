//! Operations on the tree and on the naive model at once, each of them one number.

use std::collections::HashMap;

use radix_rs::chain::{self, HashKey};
use radix_rs::delta::{Event, Removed};
use radix_rs::error::TreeError;
use radix_rs::tree::{Claim, EvictPolicy, Tree};

use crate::naive::{NAMESPACES, Naive, Prefix, namespace};

const SIZES: [(usize, usize); 8] = [
    (1, 1),
    (1, 4),
    (2, 4),
    (4, 4),
    (4, 16),
    (16, 16),
    (16, 64),
    (64, 64),
];

/// Two tokens, so that keys part and meet everywhere.
const VOCABULARY: [u32; 2] = [0, u32::MAX];

/// A number, taken apart choice by choice. What is left of it at the end chooses nothing.
struct Choices(u64);

impl Choices {
    fn below(&mut self, count: u64) -> usize {
        let chosen = self.0 % count;
        self.0 /= count;
        usize::try_from(chosen).unwrap()
    }

    fn of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64)].clone()
    }

    fn sizes(&mut self) -> (usize, usize) {
        self.of(&SIZES)
    }

    fn policy(&mut self) -> EvictPolicy {
        match self.below(8) {
            0 => EvictPolicy::Lru,
            1 => EvictPolicy::Lfu,
            2 => EvictPolicy::Slru {
                threshold: self.below(5) as u64,
            },
            3 => EvictPolicy::Priority,
            4 => EvictPolicy::Tlru {
                threshold: self.below(40) as u64,
                next_prompt_estimate: self.below(10) as u64,
            },
            5 => EvictPolicy::Fifo,
            6 => EvictPolicy::Mru,
            _ => EvictPolicy::Filo,
        }
    }

    fn priority(&mut self) -> i64 {
        self.of(&[0, 1, -1])
    }
}

/// A request between admission and end.
struct Running {
    space: usize,
    tokens: Vec<u32>,
    prompt_length: usize,
    slots: Vec<i32>,
    receipt: u64,
    /// What the receipt locks.
    locked: Prefix,
    owned_from: usize,
    counted_to: usize,
}

impl Running {
    fn claim(&self, priority: i64) -> Claim {
        Claim {
            owned_from: self.owned_from,
            counted_to: self.counted_to,
            priority,
        }
    }
}

pub struct Tape {
    page_size: usize,
    /// All that shows is compared after so many operations: it takes longer than they do.
    compare_every: usize,
    tree: Tree,
    naive: Naive,
    free: Vec<i32>,
    made: i32,
    /// Locks that belong to no request.
    locked: Vec<(u64, Prefix)>,
    used_receipt: u64,
    running: Vec<Running>,
    stale: Vec<u64>,
    /// The blocks that the deltas describe, each with its parent.
    mirror: HashMap<u64, u64>,
}

/// The first number says which tree, each other one what is done to it.
pub fn replay(tape: &[u64]) {
    let Some((&first, operations)) = tape.split_first() else {
        return;
    };
    let mut tape = Tape::new(&mut Choices(first));
    for (number, &operation) in operations.iter().enumerate() {
        tape.apply(&mut Choices(operation));
        if number % tape.compare_every == 0 {
            tape.compare();
        }
    }
    tape.wind_up();
}

impl Tape {
    fn new(choices: &mut Choices) -> Self {
        let key = HashKey::derive(b"a secret");
        let (page_size, block_size) = choices.sizes();
        let policy = choices.policy();
        Self {
            page_size,
            compare_every: choices.of(&[1, 8, 64]),
            tree: Tree::new(page_size, block_size, key.clone(), "m", policy).unwrap(),
            naive: Naive::new(page_size, block_size, key, policy),
            free: Vec::new(),
            made: 0,
            locked: Vec::new(),
            used_receipt: u64::MAX,
            running: Vec::new(),
            stale: Vec::new(),
            mirror: HashMap::new(),
        }
    }

    fn apply(&mut self, choices: &mut Choices) {
        match choices.below(32) {
            0..4 => {
                let (space, tokens) = self.tokens(choices);
                self.find(space, &tokens);
            }
            4..9 => self.insert(choices),
            9..13 => self.admit(choices),
            13 => self.admit_again(choices),
            14..18 => self.checkpoint(choices),
            18..21 => self.finish(choices),
            21..23 => self.lock(choices),
            23 => self.unlock(choices),
            24..28 => self.evict(choices.below(80)),
            28 => self.drain(),
            29 => self.snapshot(1 + choices.below(7)),
            30 => self.misuse(choices),
            _ => self.reset(),
        }
    }

    /// Each symbol makes a third of a page, so that long pages part anywhere, too.
    fn tokens(&self, choices: &mut Choices) -> (usize, Vec<u32>) {
        let space = choices.below(NAMESPACES.len() as u64);
        (space, self.symbols(choices))
    }

    fn symbols(&self, choices: &mut Choices) -> Vec<u32> {
        let third = (self.page_size / 3).max(1);
        let count = choices.below(21);
        (0..count)
            .flat_map(|_| std::iter::repeat_n(choices.of(&VOCABULARY), third))
            .collect()
    }

    /// Freed slots are used again, the last freed first.
    fn allocate(&mut self, count: usize) -> Vec<i32> {
        while self.free.len() < count {
            self.free.push(self.made);
            self.made += 1;
        }
        self.free.split_off(self.free.len() - count)
    }

    fn find(&mut self, space: usize, tokens: &[u32]) -> Prefix {
        let key = self.naive.key(space, tokens);
        let length = self.naive.peek(&key);
        assert_eq!(self.tree.peek(tokens, namespace(space)), Ok(length));
        let found = self.tree.match_prefix(tokens, namespace(space)).unwrap();
        let prefix = self.naive.find(&key);
        assert_eq!(found.length, length);
        assert_eq!(self.path_slots(found.node), self.naive.slots(&prefix, 0));
        self.see(&prefix, found.node);
        let nodes = self.tree.stats().nodes;
        let again = self.tree.match_prefix(tokens, namespace(space)).unwrap();
        assert_eq!((again, self.tree.stats().nodes), (found, nodes));
        self.naive.find(&key);
        prefix
    }

    fn path_slots(&self, node: u64) -> Vec<i32> {
        let mut pieces: Vec<(usize, Vec<i32>)> = self
            .tree
            .path_slots(node, 0)
            .unwrap()
            .map(|(start, slots)| (start, slots.collect()))
            .collect();
        pieces.sort_unstable();
        pieces.into_iter().flat_map(|(_, slots)| slots).collect()
    }

    /// A node keeps its handle, and no handle comes again.
    fn see(&mut self, prefix: &[u32], handle: u64) {
        assert!(!self.stale.contains(&handle));
        if let Some(end) = self.naive.ends.get_mut(prefix) {
            assert_eq!(*end.handle.get_or_insert(handle), handle);
        }
    }

    fn insert(&mut self, choices: &mut Choices) {
        let (owns, counts, priority) = (choices.below(2), choices.below(2), choices.priority());
        let (space, tokens) = self.tokens(choices);
        let prefix = self.find(space, &tokens);
        let owned_from = owns * (prefix.len() - 1);
        let claim = Claim {
            owned_from,
            counted_to: counts * owned_from,
            priority,
        };
        let mut slots = self.naive.slots(&prefix, 0)[..owned_from].to_vec();
        slots.extend(self.allocate(tokens.len() - owned_from));

        let key = self.naive.key(space, &tokens);
        let done = self
            .tree
            .insert(&tokens, &slots, claim, namespace(space))
            .unwrap();
        let held = self.naive.insert(&key, &slots, claim);
        assert_eq!(done.prefix_length, held);
        assert_eq!(done.duplicates, owned_from..held);
        assert_eq!(self.tree.peek(&tokens, namespace(space)), Ok(key.len() - 1));
        self.free.extend(&slots[done.duplicates]);
        self.free.extend(&slots[key.len() - 1..]);
        self.see(&key, done.node);
    }

    fn admit(&mut self, choices: &mut Choices) {
        let (space, tokens) = self.tokens(choices);
        let admitted = self.tree.admit(&tokens, None, namespace(space)).unwrap();
        let prefix = self.naive.find(&self.naive.key(space, &tokens));
        self.naive.lock(&prefix);
        let slots = self.naive.slots(&prefix, 0);
        assert_eq!(admitted.length, slots.len());
        assert_eq!(self.path_slots(admitted.node), slots);
        self.see(&prefix, admitted.node);
        self.running.push(Running {
            space,
            prompt_length: tokens.len(),
            tokens,
            owned_from: slots.len(),
            slots,
            receipt: admitted.receipt,
            locked: prefix,
            counted_to: 0,
        });
    }

    /// Somebody may have computed more of the prompt since.
    fn admit_again(&mut self, choices: &mut Choices) {
        let Some(mut request) = self.take_running(choices) else {
            return;
        };
        let space = namespace(request.space);
        let admitted = self
            .tree
            .admit(&request.tokens, Some(request.receipt), space)
            .unwrap();
        let prefix = self
            .naive
            .find(&self.naive.key(request.space, &request.tokens));
        self.naive.lock(&prefix);
        self.naive.unlock(&request.locked);
        self.free.extend(&request.slots[request.owned_from..]);
        request.slots = self.naive.slots(&prefix, 0);
        assert_eq!(admitted.length, request.slots.len());
        request.owned_from = admitted.length;
        self.see(&prefix, admitted.node);
        self.used_receipt = std::mem::replace(&mut request.receipt, admitted.receipt);
        request.locked = prefix;
        self.running.push(request);
    }

    /// After a chunk of the prompt, or with output.
    fn checkpoint(&mut self, choices: &mut Choices) {
        let Some(mut request) = self.take_running(choices) else {
            return;
        };
        let claim = request.claim(choices.priority());
        let upto = choices.below(40) * (self.page_size / 3).max(1);
        request.tokens.extend(self.symbols(choices));
        let tokens = &request.tokens[..upto.clamp(request.owned_from, request.tokens.len())];
        let fresh = tokens.len().saturating_sub(request.slots.len());
        request.slots.extend(self.allocate(fresh));

        let done = self
            .tree
            .checkpoint(
                tokens,
                &request.slots,
                request.prompt_length,
                request.receipt,
                claim,
                namespace(request.space),
            )
            .unwrap();
        let prompt = &tokens[..request.prompt_length.min(tokens.len())];
        let prompt = self.naive.key(request.space, prompt);
        let key = self.naive.key(request.space, tokens);
        let stored = self
            .naive
            .checkpoint(&key, &prompt, &mut request.slots, claim);
        self.naive.lock(&key);
        self.naive.unlock(&request.locked);
        assert_eq!(
            (done.length, done.prefix_length),
            (stored.length, stored.prefix_length)
        );
        let freed = done.freed.to_vec();
        assert_eq!(freed, stored.freed);
        assert_eq!(
            self.path_slots(done.node),
            self.naive.slots(&key, 0),
            "what the caller is to use from now on"
        );
        self.see(&key, done.node);
        self.free.extend(freed);
        self.used_receipt = std::mem::replace(&mut request.receipt, done.receipt);
        request.locked = key;
        request.owned_from = done.length;
        request.counted_to = done.length;
        self.running.push(request);
    }

    /// With some slots more than tokens.
    fn finish(&mut self, choices: &mut Choices) {
        let Some(mut request) = self.take_running(choices) else {
            return;
        };
        let claim = request.claim(choices.priority());
        let over = choices.below(4);
        request.tokens.extend(self.symbols(choices));
        let tokens = &request.tokens;
        let missing = (tokens.len() + over).saturating_sub(request.slots.len());
        request.slots.extend(self.allocate(missing));

        let freed = self
            .tree
            .finish(
                tokens,
                &request.slots,
                request.prompt_length,
                request.receipt,
                claim,
                namespace(request.space),
            )
            .unwrap();
        let prompt = &tokens[..request.prompt_length.min(tokens.len())];
        let prompt = self.naive.key(request.space, prompt);
        let key = self.naive.key(request.space, tokens);
        let stored = self
            .naive
            .checkpoint(&key, &prompt, &mut request.slots, claim);
        self.naive.unlock(&request.locked);
        let expected = [&stored.freed, &request.slots[stored.length..]].concat();
        let freed = freed.to_vec();
        assert_eq!(freed, expected);
        self.free.extend(freed);
        self.used_receipt = request.receipt;
    }

    fn take_running(&mut self, choices: &mut Choices) -> Option<Running> {
        let count = self.running.len() as u64;
        (count > 0).then(|| self.running.swap_remove(choices.below(count)))
    }

    fn lock(&mut self, choices: &mut Choices) {
        let seen = self.naive.ends.iter();
        let seen: Vec<(Prefix, u64)> = seen
            .filter_map(|(end, node)| Some((end.clone(), node.handle?)))
            .collect();
        if !seen.is_empty() {
            let (prefix, handle) = choices.of(&seen);
            let receipt = self.tree.lock(handle).unwrap();
            self.naive.lock(&prefix);
            self.locked.push((receipt, prefix));
        }
    }

    fn unlock(&mut self, choices: &mut Choices) {
        if !self.locked.is_empty() {
            let which = choices.below(self.locked.len() as u64);
            let (receipt, prefix) = self.locked.swap_remove(which);
            self.tree.unlock(receipt).unwrap();
            self.naive.unlock(&prefix);
            self.used_receipt = receipt;
        }
    }

    fn evict(&mut self, num_tokens: usize) {
        let evictable = self.tree.stats().evictable;
        let freed = self.tree.evict(num_tokens).to_vec();
        assert_eq!(freed, self.naive.evict(num_tokens, &mut self.stale));
        assert!(freed.len() >= num_tokens.min(evictable));
        self.free.extend(freed);
    }

    fn reset(&mut self) {
        let locks = self.locked.len() + self.running.len();
        if locks > 0 {
            assert_eq!(self.tree.reset(), Err(TreeError::Locked { locks }));
            return;
        }
        let mut slots = self.tree.reset().unwrap().to_vec();
        self.free.extend(&slots);
        let mut expected = self.naive.reset(&mut self.stale);
        slots.sort_unstable();
        expected.sort_unstable();
        assert_eq!(slots, expected);
    }

    fn drain(&mut self) {
        let Some(deltas) = self.tree.drain_deltas() else {
            return;
        };
        let (stored, removed) = follow(&mut self.mirror, &deltas.events);
        assert_eq!((deltas.stored, deltas.removed), (stored, removed));
        assert_eq!((deltas.count, deltas.digest), self.tree.count_digest());
        assert_eq!(self.tree.drain_deltas(), None);
        let blocks = self.naive.blocks();
        assert_eq!(self.mirror.len(), blocks.len());
        assert!(self.mirror.keys().all(|hash| blocks.contains(hash)));
    }

    fn snapshot(&mut self, max_blocks: usize) {
        let mut mirror = HashMap::new();
        for chunk in self.tree.snapshot(max_blocks).unwrap() {
            let (stored, removed) = follow(&mut mirror, &chunk);
            assert!((1..=max_blocks as u64).contains(&stored) && removed == 0);
        }
        let blocks = self.naive.blocks();
        assert_eq!(mirror.len(), blocks.len());
        assert!(mirror.keys().all(|hash| blocks.contains(hash)));
    }

    /// Everything a caller can get wrong. `compare` then finds nothing changed.
    fn misuse(&mut self, choices: &mut Choices) {
        let generation = (1 + choices.below(3) as u64) << 32;
        let some_request = choices.below(64);
        let (space, tokens) = self.tokens(choices);
        let slots = vec![-7; tokens.len()];
        let place = namespace(space);

        for &handle in self.stale.iter().chain([u64::MAX, 0].iter()) {
            let unknown = TreeError::UnknownNode(handle);
            assert_eq!(self.tree.lock(handle), Err(unknown.clone()));
            assert_eq!(
                self.tree.path_slots(handle, 0).map(|_| ()).unwrap_err(),
                unknown
            );
        }
        let mut receipts = vec![self.used_receipt, 0];
        for handle in self.naive.ends.values().filter_map(|end| end.handle) {
            let other = handle ^ generation;
            assert_eq!(self.tree.lock(other), Err(TreeError::UnknownNode(other)));
            receipts.push(handle);
        }
        for receipt in receipts {
            let unknown = TreeError::UnknownReceipt(receipt);
            let claim = Claim::default();
            assert_eq!(self.tree.unlock(receipt), Err(unknown.clone()));
            let admitted = self.tree.admit(&tokens, Some(receipt), place);
            assert_eq!(admitted, Err(unknown.clone()));
            let done = self
                .tree
                .checkpoint(&tokens, &slots, 0, receipt, claim, place);
            assert_eq!(done, Err(unknown.clone()));
            let done = self.tree.finish(&tokens, &slots, 0, receipt, claim, place);
            assert_eq!(done, Err(unknown));
        }

        let held = self.naive.peek(&self.naive.key(space, &tokens));
        let owned_from = held + 1 + some_request;
        let greedy = Claim {
            owned_from,
            ..Claim::default()
        };
        let not_held = TreeError::NotHeld { owned_from, held };
        if held < tokens.len() - tokens.len() % self.page_size {
            let done = self.tree.insert(&tokens, &slots, greedy, place);
            assert_eq!(done, Err(not_held.clone()));
        }
        if !tokens.is_empty() {
            let short = TreeError::SlotsTooShort {
                tokens: tokens.len(),
                slots: tokens.len() - 1,
            };
            let done = self
                .tree
                .insert(&tokens, &slots[1..], Claim::default(), place);
            assert_eq!(done, Err(short));
        }
        if let Some(request) = self.running.get(some_request) {
            let receipt = request.receipt;
            let done = self
                .tree
                .checkpoint(&tokens, &slots, 3, receipt, greedy, place);
            assert_eq!(done, Err(not_held.clone()));
            let done = self.tree.finish(&tokens, &slots, 3, receipt, greedy, place);
            assert_eq!(done, Err(not_held));
            assert_eq!(
                self.tree.lock(receipt),
                Err(TreeError::UnknownNode(receipt))
            );
        }
        assert_eq!(self.tree.snapshot(0), Err(TreeError::EmptyChunk));
    }

    fn compare(&self) {
        self.tree.check().unwrap();
        assert_eq!(self.tree.dump(), self.naive.dump());
        let stats = self.tree.stats();
        assert_eq!(stats.nodes, self.naive.ends.len());
        assert_eq!(stats.tokens, self.naive.num_tokens());
        assert_eq!(stats.protected, self.naive.num_protected());
        assert_eq!(stats.evictable + stats.protected, stats.tokens);
        assert_eq!(stats.locks, self.locked.len() + self.running.len());

        let blocks = self.naive.blocks();
        let digest = blocks
            .iter()
            .fold(0u64, |sum, &hash| sum.wrapping_add(hash));
        assert_eq!(self.tree.count_digest(), (blocks.len() as u64, digest));

        let mut slots = self.naive.all_slots();
        slots.extend(&self.free);
        for request in &self.running {
            slots.extend(&request.slots[request.owned_from..]);
        }
        let mut missing = vec![true; usize::try_from(self.made).unwrap()];
        for slot in slots {
            let here = &mut missing[usize::try_from(slot).unwrap()];
            assert!(std::mem::take(here), "slot {slot} is in two places");
        }
        assert!(!missing.contains(&true), "a slot is lost");
    }

    /// All locks can be undone, and all that is left evicted.
    fn wind_up(&mut self) {
        while !self.running.is_empty() {
            self.finish(&mut Choices(0));
        }
        while !self.locked.is_empty() {
            self.unlock(&mut Choices(0));
        }
        assert_eq!(self.tree.stats().protected, 0);
        self.evict(usize::MAX);
        self.compare();
        self.drain();
        assert!(self.mirror.is_empty());
        assert_eq!(self.tree.stats().nodes, 0);
        assert_eq!(self.tree.count_digest(), (0, 0));
    }
}

/// Do to `mirror` what the events say; how many blocks they store and remove.
fn follow(mirror: &mut HashMap<u64, u64>, events: &[Event]) -> (u64, u64) {
    let (mut stored, mut removed) = (0, 0);
    for event in events {
        match event {
            Event::Stored(run) => {
                let mut parent = run.parent;
                assert!(parent == chain::NO_PARENT || mirror.contains_key(&parent));
                for &hash in &run.hashes {
                    assert_eq!(mirror.insert(hash, parent), None);
                    parent = hash;
                    stored += 1;
                }
            }
            Event::Removed(range) => {
                let mut hash = range.last;
                let mut hashes = Vec::new();
                for _ in 0..range.count {
                    assert!(!mirror.values().any(|&parent| parent == hash));
                    hashes.push(hash);
                    hash = mirror.remove(&hash).unwrap();
                    removed += 1;
                }
                hashes.reverse();
                assert_eq!(Removed::of(&hashes), Some(*range));
            }
            Event::Cleared(_) => {
                mirror.clear();
                (stored, removed) = (0, 0);
            }
            Event::Expected(_) | Event::Dropped(_) => panic!("a tree expects nothing by itself"),
        }
    }
    (stored, removed)
}
