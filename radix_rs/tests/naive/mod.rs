//! The tree as a set of token tuples: plainly right, and slow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use radix_rs::chain::{self, HashKey};
use radix_rs::tree::{Claim, EvictPolicy, Namespace};

/// In the order of their names.
pub const NAMESPACES: [(&str, &str); 4] = [("", ""), ("", "abc"), ("a", "bc"), ("ab", "c")];

/// A namespace's index, then tokens.
pub type Prefix = Vec<u32>;

/// A node, by where it ends.
#[derive(Clone, Default)]
pub struct End {
    last_used: u64,
    created: u64,
    hits: u64,
    priority: i64,
    /// Tokens of the longest key inserted through it.
    longest: usize,
    pub lock_ref: u32,
    /// The tree's handle, once it was seen.
    pub handle: Option<u64>,
}

struct Page {
    slots: Vec<i32>,
    /// Hash of the block that ends here, if one does.
    block: Option<u64>,
}

/// `pages` maps every cached prefix to its last page, `ends` says where nodes end: a node reaches from its
/// own end up to the next shorter one.
pub struct Naive {
    page_size: usize,
    block_size: usize,
    key: HashKey,
    policy: EvictPolicy,
    pages: BTreeMap<Prefix, Page>,
    pub ends: BTreeMap<Prefix, End>,
    clock: u64,
}

/// What the tree answers to a checkpoint, receipts and handles apart.
pub struct Stored {
    pub length: usize,
    pub prefix_length: usize,
    pub freed: Vec<i32>,
}

impl Naive {
    pub fn new(page_size: usize, block_size: usize, key: HashKey, policy: EvictPolicy) -> Self {
        Self {
            page_size,
            block_size,
            key,
            policy,
            pages: BTreeMap::new(),
            ends: BTreeMap::new(),
            clock: 0,
        }
    }

    /// The whole pages of `tokens` in a namespace.
    pub fn key(&self, space: usize, tokens: &[u32]) -> Prefix {
        let whole = tokens.len() - tokens.len() % self.page_size;
        let mut key = vec![u32::try_from(space).unwrap()];
        key.extend(&tokens[..whole]);
        key
    }

    /// How many tokens of the key are cached.
    pub fn peek(&self, key: &[u32]) -> usize {
        (1..key.len())
            .rev()
            .find(|&length| self.pages.contains_key(&key[..=length]))
            .unwrap_or(0)
    }

    /// What is cached of the key, used and as a node of its own.
    pub fn find(&mut self, key: &[u32]) -> Prefix {
        let prefix = key[..=self.peek(key)].to_vec();
        self.use_prefix(&prefix);
        prefix
    }

    /// Tokens that were held before. `slots` may be longer than the key.
    pub fn insert(&mut self, key: &[u32], slots: &[i32], claim: Claim) -> usize {
        let held = self.peek(key);
        self.use_prefix(&key[..=held]);
        if held < key.len() - 1 {
            let hashes = self.hashes(key);
            for start in (held..key.len() - 1).step_by(self.page_size) {
                let end = start + self.page_size;
                let page = Page {
                    slots: slots[start..end].to_vec(),
                    block: (end.is_multiple_of(self.block_size))
                        .then(|| hashes[end / self.block_size - 1]),
                };
                self.pages.insert(key[..=end].to_vec(), page);
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
        held
    }

    /// The small calls that a checkpoint stands for, on `slots` as the caller's buffer; locks apart.
    pub fn checkpoint(
        &mut self,
        key: &[u32],
        prompt: &[u32],
        slots: &mut [i32],
        claim: Claim,
    ) -> Stored {
        let held = self.insert(key, slots, claim);
        if 1 < prompt.len() && prompt.len() < key.len() {
            let of_prompt = Claim {
                owned_from: prompt.len() - 1,
                counted_to: prompt.len() - 1,
                priority: claim.priority + 1,
            };
            self.insert(prompt, slots, of_prompt);
        }
        self.use_prefix(key);
        let length = key.len() - 1;
        let freed = slots[claim.owned_from..held.max(claim.owned_from)].to_vec();
        let kept = self.slots(key, 0);
        slots[claim.owned_from..length].copy_from_slice(&kept[claim.owned_from..]);
        Stored {
            length,
            prefix_length: held,
            freed,
        }
    }

    pub fn lock(&mut self, prefix: &[u32]) {
        self.path(prefix).for_each(|(_, end)| end.lock_ref += 1);
    }

    pub fn unlock(&mut self, prefix: &[u32]) {
        self.path(prefix).for_each(|(_, end)| end.lock_ref -= 1);
    }

    /// Slots in the order in which they are freed; the handles of the victims go to `gone`.
    pub fn evict(&mut self, num_tokens: usize, gone: &mut Vec<u64>) -> Vec<i32> {
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

    /// All slots, in no order.
    pub fn reset(&mut self, gone: &mut Vec<u64>) -> Vec<i32> {
        let slots = self.all_slots();
        gone.extend(self.ends.values().filter_map(|end| end.handle));
        self.pages.clear();
        self.ends.clear();
        slots
    }

    pub fn all_slots(&self) -> Vec<i32> {
        self.pages
            .values()
            .flat_map(|page| page.slots.clone())
            .collect()
    }

    /// The slots of a cached prefix at the positions from `start` on.
    pub fn slots(&self, prefix: &[u32], start: usize) -> Vec<i32> {
        (start + self.page_size..prefix.len())
            .step_by(self.page_size)
            .flat_map(|end| self.pages[&prefix[..=end]].slots.clone())
            .collect()
    }

    pub fn num_tokens(&self) -> usize {
        self.pages.len() * self.page_size
    }

    pub fn num_protected(&self) -> usize {
        let locked = self.ends.iter().filter(|(_, end)| end.lock_ref > 0);
        locked.map(|(end, _)| end.len() - 1 - self.start(end)).sum()
    }

    pub fn blocks(&self) -> BTreeSet<u64> {
        self.pages.values().filter_map(|page| page.block).collect()
    }

    pub fn dump(&self) -> String {
        let mut text = String::from("root\n");
        let mut space = 0;
        for (end, node) in &self.ends {
            if end[0] != space {
                space = end[0];
                let (extra_key, cache_salt) = NAMESPACES[space as usize];
                writeln!(
                    text,
                    "root extra_key=\"{extra_key}\" cache_salt=\"{cache_salt}\""
                )
                .unwrap();
            }
            let start = self.start(end);
            let depth = self.ends.keys().filter(|above| end.starts_with(above));
            writeln!(
                text,
                "{}{} lock={} hits={} slots={}",
                "  ".repeat(depth.count()),
                end.len() - 1 - start,
                node.lock_ref,
                node.hits,
                ranges(&self.slots(end, start))
            )
            .unwrap();
        }
        text
    }

    /// Make the path to a cached prefix the most recent, and its end a node.
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

    /// The nodes from the root to `prefix`: shorter ones sort first.
    fn path(&mut self, prefix: &[u32]) -> impl Iterator<Item = (&Prefix, &mut End)> {
        self.ends
            .iter_mut()
            .filter(|(end, _)| prefix.starts_with(end))
    }

    /// Tokens above the node that ends here.
    fn start(&self, end: &[u32]) -> usize {
        let above = self
            .ends
            .keys()
            .filter(|above| above.len() < end.len() && end.starts_with(above));
        above.map(|above| above.len() - 1).max().unwrap_or(0)
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

    fn hashes(&self, key: &[u32]) -> Vec<u64> {
        let (extra_key, cache_salt) = NAMESPACES[key[0] as usize];
        let seed = chain::namespace_seed(&self.key, "m", extra_key, cache_salt);
        let mut hashes = Vec::new();
        chain::extend_chain(&self.key, seed, &key[1..], self.block_size, &mut hashes);
        hashes
    }
}

pub fn namespace(space: usize) -> Namespace<'static> {
    let (extra_key, cache_salt) = NAMESPACES[space];
    Namespace {
        extra_key,
        cache_salt,
    }
}

/// Slots as half-open ranges.
fn ranges(slots: &[i32]) -> String {
    let runs: Vec<String> = slots
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| format!("{}..{}", run[0], run[run.len() - 1] + 1))
        .collect();
    runs.join(",")
}
