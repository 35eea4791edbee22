//! The tree against a set of token tuples, on random operations over a tiny vocabulary: some 30 a case,
//! `PROPTEST_CASES` of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;
use radix_rs::chain::{self, HashKey};
use radix_rs::delta::Event;
use radix_rs::error::TreeError;
use radix_rs::tree::{Claim, EvictPolicy, Namespace, Tree};

const NAMESPACES: [(&str, &str); 3] = [("", ""), ("a", "bc"), ("ab", "c")];

/// A namespace's index, then tokens.
type Prefix = Vec<u32>;

#[derive(Clone, Default)]
struct End {
    last_used: u64,
    created: u64,
    hits: u64,
    priority: i64,
    longest: usize,
    lock_ref: u32,
    /// The tree's handle, once it was seen.
    handle: Option<u64>,
}

/// `pages` maps every cached prefix to the slots of its last page, `ends` says where nodes end.
#[derive(Default)]
struct Model {
    page_size: usize,
    pages: BTreeMap<Prefix, Vec<i32>>,
    ends: BTreeMap<Prefix, End>,
    clock: u64,
    policy: EvictPolicy,
}

impl Model {
    fn peek(&self, key: &[u32]) -> usize {
        let whole = (key.len() - 1) / self.page_size * self.page_size;
        (1..=whole)
            .rev()
            .find(|&length| self.pages.contains_key(&key[..=length]))
            .unwrap_or(0)
    }

    fn use_prefix(&mut self, prefix: &[u32]) {
        if prefix.len() > 1 && !self.ends.contains_key(prefix) {
            let below = self.ends.iter().filter(|(end, _)| end.starts_with(prefix));
            let lower = below.min_by_key(|(end, _)| end.len()).unwrap().1;
            let upper = End {
                handle: None,
                ..lower.clone()
            };
            self.ends.insert(prefix.to_vec(), upper);
        }
        let mut clock = self.clock;
        for (_, end) in self.path(prefix) {
            clock += 1;
            end.last_used = clock;
        }
        self.clock = clock;
    }

    /// What goes first has the smallest.
    fn rank(&self, end: &[u32], node: &End) -> (i64, i64) {
        let used = i64::try_from(node.last_used).unwrap();
        let created = i64::try_from(node.created).unwrap();
        match self.policy {
            EvictPolicy::Lru => (0, used),
            EvictPolicy::Lfu => (i64::try_from(node.hits).unwrap(), used),
            EvictPolicy::Slru { threshold } => (i64::from(node.hits >= threshold), used),
            EvictPolicy::Priority => (node.priority, used),
            EvictPolicy::Tlru {
                threshold,
                next_prompt_estimate,
            } => {
                let next = node.longest as u64 + next_prompt_estimate;
                let safe = self.start(end) as u64 >= next.saturating_sub(threshold);
                (-i64::from(safe), used)
            }
            EvictPolicy::Fifo => (0, created),
            EvictPolicy::Mru => (0, -used),
            EvictPolicy::Filo => (0, -created),
        }
    }

    fn store(&mut self, key: &[u32], held: usize, slots: &[i32], claim: Claim) {
        self.use_prefix(&key[..=held]);
        if held < key.len() - 1 {
            for start in (held..key.len() - 1).step_by(self.page_size) {
                let end = start + self.page_size;
                self.pages
                    .insert(key[..=end].to_vec(), slots[start..end].to_vec());
            }
            let leaf = End {
                created: self.clock + 1,
                priority: claim.priority,
                ..End::default()
            };
            self.ends.insert(key.to_vec(), leaf);
        }
        self.use_prefix(key);
        for (end, node) in self.path(key) {
            node.hits += u64::from(end.len() - 1 > claim.counted_to);
            node.priority = node.priority.max(claim.priority);
            node.longest = node.longest.max(key.len() - 1);
        }
    }

    /// The nodes from the root to `prefix`: shorter ones sort first.
    fn path(&mut self, prefix: &[u32]) -> impl Iterator<Item = (&Prefix, &mut End)> {
        self.ends
            .iter_mut()
            .filter(|(end, _)| prefix.starts_with(end))
    }

    fn start(&self, end: &[u32]) -> usize {
        let above = self
            .ends
            .keys()
            .filter(|above| above.len() < end.len() && end.starts_with(above));
        above.map(|above| above.len() - 1).max().unwrap_or(0)
    }

    fn slots(&self, prefix: &[u32], start: usize) -> Vec<i32> {
        (start + self.page_size..prefix.len())
            .step_by(self.page_size)
            .flat_map(|end| self.pages[&prefix[..=end]].clone())
            .collect()
    }

    fn evict(&mut self, num_tokens: usize, gone: &mut Vec<u64>) -> Vec<i32> {
        let mut freed = Vec::new();
        while freed.len() < num_tokens {
            let is_leaf = |leaf: &Prefix| {
                !self
                    .ends
                    .keys()
                    .any(|end| end.len() > leaf.len() && end.starts_with(leaf))
            };
            let leaves = self
                .ends
                .iter()
                .filter(|(end, node)| node.lock_ref == 0 && is_leaf(end));
            let Some(leaf) = leaves.min_by_key(|(end, node)| self.rank(end, node)) else {
                break;
            };
            let leaf = leaf.0.clone();
            let start = self.start(&leaf);
            freed.extend(self.slots(&leaf, start));
            for end in (start + self.page_size..leaf.len()).step_by(self.page_size) {
                self.pages.remove(&leaf[..=end]);
            }
            gone.extend(self.ends.remove(&leaf).unwrap().handle);
        }
        freed
    }

    fn protected(&self) -> usize {
        let locked = self.ends.iter().filter(|(_, end)| end.lock_ref > 0);
        locked.map(|(end, _)| end.len() - 1 - self.start(end)).sum()
    }

    fn blocks(&self, key: &HashKey, block_size: usize) -> BTreeSet<u64> {
        let mut blocks = BTreeSet::new();
        for prefix in self.ends.keys() {
            let (extra_key, cache_salt) = NAMESPACES[prefix[0] as usize];
            let seed = chain::namespace_seed(key, "m", extra_key, cache_salt);
            let mut hashes = Vec::new();
            chain::extend_chain(key, seed, &prefix[1..], block_size, &mut hashes);
            blocks.extend(hashes);
        }
        blocks
    }
}

#[derive(Clone, Debug)]
enum Op {
    Match(usize, Vec<u32>),
    Insert(usize, Vec<u32>, bool, i64),
    /// A request: admitted, checkpointed when some of the tokens are there, and finished.
    Request(usize, Vec<u32>, prop::sample::Index, i64),
    Lock(prop::sample::Index),
    Unlock(prop::sample::Index),
    Evict(usize),
    Reset,
    Drain,
}

fn op(page_size: usize) -> impl Strategy<Value = Op> {
    let tokens = prop::collection::vec(0u32..2, 0..10 * page_size.min(6));
    let place = (0..NAMESPACES.len(), tokens);
    prop_oneof![
        4 => place.clone().prop_map(|(space, tokens)| Op::Match(space, tokens)),
        6 => (place.clone(), any::<bool>(), -1i64..2).prop_map(|((space, tokens), own, priority)| {
            Op::Insert(space, tokens, own, priority)
        }),
        6 => (place, any::<prop::sample::Index>(), -1i64..2).prop_map(
            |((space, tokens), at, priority)| Op::Request(space, tokens, at, priority)
        ),
        2 => any::<prop::sample::Index>().prop_map(Op::Lock),
        2 => any::<prop::sample::Index>().prop_map(Op::Unlock),
        2 => (0usize..40).prop_map(Op::Evict),
        1 => Just(Op::Reset),
        2 => Just(Op::Drain),
    ]
}

/// Does the same to both and compares what shows.
struct Pair {
    tree: Tree,
    model: Model,
    key: HashKey,
    block_size: usize,
    receipts: Vec<(u64, Prefix)>,
    stale: Vec<u64>,
    next_slot: i32,
    /// The blocks that the deltas describe, each with its parent.
    mirror: HashMap<u64, u64>,
}

impl Pair {
    fn new(page_size: usize, block_size: usize, policy: EvictPolicy) -> Self {
        let key = HashKey::derive(b"a secret");
        let model = Model {
            page_size,
            policy,
            ..Model::default()
        };
        Self {
            tree: Tree::new(page_size, block_size, key, "m")
                .unwrap()
                .with_policy(policy),
            model,
            key,
            block_size,
            receipts: Vec::new(),
            stale: Vec::new(),
            next_slot: 0,
            mirror: HashMap::new(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Match(space, tokens) => {
                self.find(*space, tokens);
            }
            Op::Insert(space, tokens, own, priority) => {
                self.insert(*space, tokens, *own, *priority);
            }
            Op::Request(space, tokens, at, priority) => {
                self.request(*space, tokens, at.index(tokens.len() + 1), *priority);
            }
            Op::Lock(which) => self.lock(*which),
            Op::Unlock(which) if !self.receipts.is_empty() => {
                let (receipt, prefix) = self.receipts.swap_remove(which.index(self.receipts.len()));
                self.tree.unlock(receipt).unwrap();
                let again = self.tree.unlock(receipt);
                assert_eq!(again, Err(TreeError::UnknownReceipt(receipt)));
                self.model
                    .path(&prefix)
                    .for_each(|(_, end)| end.lock_ref -= 1);
            }
            Op::Unlock(_) => {}
            Op::Evict(num_tokens) => self.evict(*num_tokens),
            Op::Reset => self.reset(),
            Op::Drain => self.drain(),
        }
    }

    /// The length, once both agree on it and on the slots.
    fn find(&mut self, space: usize, tokens: &[u32]) -> usize {
        let mut prefix = vec![u32::try_from(space).unwrap()];
        prefix.extend(tokens);
        let length = self.model.peek(&prefix);
        prefix.truncate(1 + length);
        assert_eq!(self.tree.peek(tokens, namespace(space)), Ok(length));
        let found = self.tree.match_prefix(tokens, namespace(space)).unwrap();
        self.model.use_prefix(&prefix);
        assert_eq!(found.length, length);
        let mut slots = vec![-1; length];
        for (start, piece) in self.tree.path_slots(found.node, 0).unwrap() {
            for (slot, cached) in slots[start..].iter_mut().zip(piece) {
                *slot = cached;
            }
        }
        assert_eq!(slots, self.model.slots(&prefix, 0));
        self.see(&prefix, found.node);
        length
    }

    fn insert(&mut self, space: usize, tokens: &[u32], own: bool, priority: i64) {
        let owned = if own { self.find(space, tokens) } else { 0 };
        let mut key = vec![u32::try_from(space).unwrap()];
        key.extend(&tokens[..tokens.len() / self.model.page_size * self.model.page_size]);
        let held = self.model.peek(&key);
        let mut slots = vec![-1; owned];
        let fresh = i32::try_from(tokens.len() - owned).unwrap();
        slots.extend(self.next_slot..self.next_slot + fresh);
        self.next_slot += fresh;
        let claim = Claim {
            owned_from: owned,
            counted_to: owned,
            priority,
        };
        let done = self
            .tree
            .insert(tokens, &slots, claim, namespace(space))
            .unwrap();
        assert_eq!((done.prefix_length, done.duplicates), (held, owned..held));
        if key.len() > 1 {
            self.model.store(&key, held, &slots, claim);
        }
        self.see(&key, done.node);
    }

    /// The prompt is the first `prompt` tokens, checkpointed; then the rest is computed and all finished.
    fn request(&mut self, space: usize, tokens: &[u32], prompt: usize, priority: i64) {
        let page_size = self.model.page_size;
        let mut key = vec![u32::try_from(space).unwrap()];
        key.extend(&tokens[..prompt]);
        let held = self.model.peek(&key);
        let admitted = self
            .tree
            .admit(&tokens[..prompt], None, namespace(space))
            .unwrap();
        assert_eq!(admitted.length, held);
        self.model.use_prefix(&key[..=held]);
        self.see(&key[..=held], admitted.node);

        let fresh = i32::try_from(tokens.len() - held).unwrap();
        let mut slots = self.model.slots(&key[..=held], 0);
        slots.extend(self.next_slot..self.next_slot + fresh);
        self.next_slot += fresh;
        let mut claim = Claim {
            owned_from: held,
            counted_to: 0,
            priority,
        };
        let done = self.tree.checkpoint(
            &tokens[..prompt],
            &slots,
            prompt,
            admitted.receipt,
            claim,
            namespace(space),
        );
        let done = done.unwrap();
        // Nobody else was there meanwhile: what it held it still holds, and no more.
        key.truncate(1 + prompt - prompt % page_size);
        assert_eq!((done.length, done.prefix_length), (key.len() - 1, held));
        assert!(done.freed.is_empty());
        if key.len() > 1 {
            self.model.store(&key, held, &slots, claim);
        }
        self.see(&key, done.node);

        let boundary = key.clone();
        key.extend(&tokens[done.length..tokens.len() - tokens.len() % page_size]);
        let held = self.model.peek(&key);
        claim.owned_from = done.length;
        claim.counted_to = done.length;
        let freed = self.tree.finish(
            tokens,
            &slots,
            prompt,
            done.receipt,
            claim,
            namespace(space),
        );
        let expected = [&slots[done.length..held], &slots[key.len() - 1..]].concat();
        assert_eq!(freed.unwrap(), expected);
        if key.len() > 1 {
            self.model.store(&key, held, &slots, claim);
        }
        if 1 < boundary.len() && boundary.len() < key.len() {
            let higher = Claim {
                priority: priority + 1,
                ..claim
            };
            let whole = boundary.len() - 1;
            self.model.store(&boundary, whole, &slots, higher);
        }
        self.model.use_prefix(&key);
    }

    /// A node keeps its handle, and no handle comes again.
    fn see(&mut self, prefix: &[u32], handle: u64) {
        assert!(!self.stale.contains(&handle));
        if let Some(end) = self.model.ends.get_mut(prefix) {
            assert_eq!(*end.handle.get_or_insert(handle), handle);
        }
    }

    fn lock(&mut self, which: prop::sample::Index) {
        for &handle in &self.stale {
            assert_eq!(self.tree.lock(handle), Err(TreeError::UnknownNode(handle)));
        }
        let seen = self
            .model
            .ends
            .iter()
            .filter_map(|(end, node)| Some((end.clone(), node.handle?)));
        let seen: Vec<(Prefix, u64)> = seen.collect();
        if !seen.is_empty() {
            let (prefix, handle) = which.get(&seen).clone();
            let receipt = self.tree.lock(handle).unwrap();
            self.model
                .path(&prefix)
                .for_each(|(_, end)| end.lock_ref += 1);
            self.receipts.push((receipt, prefix));
        }
    }

    fn evict(&mut self, num_tokens: usize) {
        let freed = self.tree.evict(num_tokens);
        assert_eq!(freed, self.model.evict(num_tokens, &mut self.stale));
    }

    fn reset(&mut self) {
        if !self.receipts.is_empty() {
            let locks = self.receipts.len();
            assert_eq!(self.tree.reset(), Err(TreeError::Locked { locks }));
            return;
        }
        let mut slots = self.tree.reset().unwrap();
        let mut expected: Vec<i32> = self.model.pages.values().flatten().copied().collect();
        slots.sort_unstable();
        expected.sort_unstable();
        assert_eq!(slots, expected);
        self.stale
            .extend(self.model.ends.values().filter_map(|end| end.handle));
        self.model.pages.clear();
        self.model.ends.clear();
    }

    fn drain(&mut self) {
        let Some(deltas) = self.tree.drain_deltas() else {
            return;
        };
        let (mut stored, mut removed) = (0, 0);
        for event in &deltas.events {
            match event {
                Event::Stored(run) => {
                    let mut parent = run.parent;
                    assert!(parent == chain::NO_PARENT || self.mirror.contains_key(&parent));
                    for &hash in &run.hashes {
                        assert_eq!(self.mirror.insert(hash, parent), None);
                        parent = hash;
                        stored += 1;
                    }
                }
                Event::Removed(range) => {
                    let mut hash = range.last;
                    for _ in 0..range.count {
                        assert!(!self.mirror.values().any(|&parent| parent == hash));
                        hash = self.mirror.remove(&hash).unwrap();
                        removed += 1;
                    }
                }
                Event::Cleared(_) => self.mirror.clear(),
            }
        }
        assert_eq!((deltas.stored, deltas.removed), (stored, removed));
        assert_eq!((deltas.count, deltas.digest), self.tree.count_digest());
    }

    fn compare(&mut self) {
        self.tree.check().unwrap();
        let stats = self.tree.stats();
        assert_eq!(stats.nodes, self.model.ends.len());
        assert_eq!(stats.tokens, self.model.pages.len() * self.model.page_size);
        assert_eq!(stats.protected, self.model.protected());
        assert_eq!(stats.locks, self.receipts.len());
        let blocks = self.model.blocks(&self.key, self.block_size);
        let digest = blocks
            .iter()
            .fold(0u64, |sum, &hash| sum.wrapping_add(chain::mix(hash)));
        assert_eq!(self.tree.count_digest(), (blocks.len() as u64, digest));
        for chunk in self.tree.snapshot(3).unwrap() {
            for event in chunk {
                let Event::Stored(run) = event else {
                    panic!("{event:?}")
                };
                assert!(run.hashes.iter().all(|hash| blocks.contains(hash)));
            }
        }
    }

    /// All locks can be undone, and all that is left evicted.
    fn wind_up(&mut self) {
        for (receipt, prefix) in std::mem::take(&mut self.receipts) {
            self.tree.unlock(receipt).unwrap();
            self.model
                .path(&prefix)
                .for_each(|(_, end)| end.lock_ref -= 1);
        }
        assert_eq!(self.tree.stats().protected, 0);
        self.evict(usize::MAX);
        self.compare();
        self.drain();
        assert!(self.mirror.is_empty());
        assert_eq!(self.tree.count_digest(), (0, 0));
    }
}

fn namespace(space: usize) -> Namespace<'static> {
    let (extra_key, cache_salt) = NAMESPACES[space];
    Namespace {
        extra_key,
        cache_salt,
    }
}

fn sizes() -> impl Strategy<Value = (usize, usize)> {
    prop::sample::select(vec![
        (1, 1),
        (1, 4),
        (2, 4),
        (4, 4),
        (4, 16),
        (16, 16),
        (64, 64),
    ])
}

fn policies() -> impl Strategy<Value = EvictPolicy> {
    prop_oneof![
        Just(EvictPolicy::Lru),
        Just(EvictPolicy::Lfu),
        (0u64..4).prop_map(|threshold| EvictPolicy::Slru { threshold }),
        Just(EvictPolicy::Priority),
        (0u64..30, 0u64..10).prop_map(|(threshold, next_prompt_estimate)| EvictPolicy::Tlru {
            threshold,
            next_prompt_estimate
        }),
        Just(EvictPolicy::Fifo),
        Just(EvictPolicy::Mru),
        Just(EvictPolicy::Filo),
    ]
}

proptest! {
    #[test]
    fn tree_and_model_agree_on_any_operations(
        ((page_size, block_size), ops) in sizes().prop_flat_map(|(page_size, block_size)| {
            (Just((page_size, block_size)), prop::collection::vec(op(page_size), 1..60))
        }),
        policy in policies(),
    ) {
        let mut pair = Pair::new(page_size, block_size, policy);
        for op in &ops {
            pair.apply(op);
            pair.compare();
        }
        pair.wind_up();
    }
}
