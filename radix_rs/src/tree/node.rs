//! Nodes and how they hang together: parents, siblings, and one table of all children.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::ops::{Index, IndexMut, Range};

use super::arena::Arena;
use super::key::{Run, to_u32};

/// The index of no node: the parent of a root, the end of a list of siblings.
pub(super) const NONE: u32 = u32::MAX;

/// A node owns `len` tokens of its run, from `offset` on. Roots own none.
#[derive(Debug)]
pub(super) struct Node {
    pub run: Run,
    offset: u32,
    len: u32,
    /// Tokens from the root to the end of this node.
    pub end: u32,
    pub parent: u32,
    pub num_children: u32,
    pub first_child: u32,
    next_sibling: u32,
    previous_sibling: u32,
    /// Live receipts whose path covers this node.
    pub lock_ref: u32,
    /// Requests whose insert reached this node.
    pub hit_count: u32,
    /// Tokens of the longest key inserted through this node, evicted since or not.
    pub history: u32,
    /// Greatest of the requests whose insert reached this node.
    pub priority: i64,
    /// Tick of the last access.
    pub last_used: u64,
    /// Tick of the insert that made it; both parts of a split keep it.
    pub created: u64,
}

impl Default for Node {
    /// A root.
    fn default() -> Self {
        Self {
            run: Run::default(),
            offset: 0,
            len: 0,
            end: 0,
            parent: NONE,
            num_children: 0,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            lock_ref: 0,
            hit_count: 0,
            history: 0,
            priority: i64::MIN,
            last_used: 0,
            created: 0,
        }
    }
}

impl Node {
    /// A node that owns all of `run` and begins `start` tokens from the root.
    pub fn leaf(run: Run, start: usize) -> Self {
        let len = to_u32(run.len());
        Self {
            run,
            len,
            end: to_u32(start) + len,
            ..Self::default()
        }
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn end(&self) -> usize {
        self.end as usize
    }

    pub fn start(&self) -> usize {
        (self.end - self.len) as usize
    }

    pub fn is_root(&self) -> bool {
        self.parent == NONE
    }

    /// Whether `evict` may take it.
    pub fn is_evictable(&self) -> bool {
        self.num_children == 0 && self.lock_ref == 0 && !self.is_root()
    }

    /// Its part of the run.
    pub fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }

    pub fn tokens(&self) -> &[u32] {
        self.run.tokens(self.range())
    }

    pub fn slots(&self) -> impl ExactSizeIterator<Item = i32> + Clone + '_ {
        self.run.slots(self.range())
    }

    /// Those at positions from `since` on, counted from the root.
    pub fn slots_since(&self, since: usize) -> impl ExactSizeIterator<Item = i32> + Clone + '_ {
        let range = self.range();
        self.run
            .slots(range.start + since.saturating_sub(self.start())..range.end)
    }

    /// Hashes of the blocks that end in this node.
    pub fn hashes(
        &self,
        block_size: usize,
    ) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
        // Blocks are numbered from the root; the run holds those that end in it.
        let before_run = (self.start() - self.offset as usize) / block_size;
        (self.start() / block_size..self.end() / block_size)
            .map(move |block| self.run.hash(block - before_run))
    }

    /// Split off the first `at` tokens as a node of its own, above this one.
    pub fn split_off_front(&mut self, at: usize) -> Self {
        let at = to_u32(at);
        debug_assert!(0 < at && at < self.len);
        let upper = Self {
            run: self.run.clone(),
            offset: self.offset,
            len: at,
            end: self.end - self.len + at,
            lock_ref: self.lock_ref,
            hit_count: self.hit_count,
            history: self.history,
            priority: self.priority,
            last_used: self.last_used,
            created: self.created,
            ..Self::default()
        };
        self.offset += at;
        self.len -= at;
        upper
    }
}

/// All nodes, each linked to its parent.
///
/// Children are found by their first page. One table serves all parents: a lookup costs the same among
/// one child and among 100,000, and a node needs no table of its own. Siblings form a list as well, so
/// that an only child, the usual case, is found without hashing.
#[derive(Debug)]
pub(super) struct Nodes {
    arena: Arena<Node>,
    children: HashTable<u32>,
    /// Seeded at random: token ids are the callers' choice, collisions must not be.
    hasher: DefaultHashBuilder,
    page_size: usize,
}

impl Nodes {
    pub fn new(page_size: usize) -> Self {
        Self {
            arena: Arena::default(),
            children: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            page_size,
        }
    }

    pub fn len(&self) -> usize {
        self.arena.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.arena.iter()
    }

    pub fn handle(&self, node: u32) -> u64 {
        self.arena.handle(node)
    }

    pub fn resolve(&self, handle: u64) -> Option<u32> {
        self.arena.resolve(handle)
    }

    pub fn add_root(&mut self) -> u32 {
        self.arena.insert(Node::default())
    }

    pub fn remove_root(&mut self, root: u32) {
        debug_assert!(self[root].is_root() && self[root].num_children == 0);
        self.arena.remove(root);
    }

    pub fn clear(&mut self) {
        self.arena.clear();
        self.children.clear();
    }

    /// The child of `parent` whose edge may begin with the first page of `tokens`. An only child is
    /// answered unseen: the caller compares the edge anyway.
    pub fn child(&self, parent: u32, tokens: &[u32]) -> Option<u32> {
        let node = &self[parent];
        match node.num_children {
            0 => None,
            1 => Some(node.first_child),
            _ => self.find(parent, &tokens[..self.page_size]),
        }
    }

    /// The child of `parent` whose edge begins with `page`.
    pub fn find(&self, parent: u32, page: &[u32]) -> Option<u32> {
        self.children
            .find(self.hash(parent, page), |&child| {
                let child = &self[child];
                child.parent == parent && child.tokens()[..self.page_size] == *page
            })
            .copied()
    }

    /// Entries of the table: every node but the roots.
    pub fn listed_children(&self) -> usize {
        self.children.len()
    }

    pub fn children(&self, parent: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |node: u32| (node != NONE).then_some(node);
        std::iter::successors(some(self[parent].first_child), move |&child| {
            some(self[child].next_sibling)
        })
    }

    /// Add `node` as a child of `parent`, which has none with its first page.
    pub fn add(&mut self, mut node: Node, parent: u32) -> u32 {
        let next = self[parent].first_child;
        node.parent = parent;
        node.next_sibling = next;
        let index = self.arena.insert(node);
        if next != NONE {
            self[next].previous_sibling = index;
        }
        let parent = &mut self[parent];
        parent.first_child = index;
        parent.num_children += 1;
        self.enter(index);
        index
    }

    /// Take a childless node out.
    pub fn remove(&mut self, index: u32) -> Node {
        debug_assert!(self[index].num_children == 0);
        let hash = self.hash_of(index);
        if let Ok(entry) = self.children.find_entry(hash, |&child| child == index) {
            entry.remove();
        }
        let node = self.arena.remove(index);
        self.relink(&node, node.next_sibling, node.previous_sibling);
        self[node.parent].num_children -= 1;
        node
    }

    /// Put the first `at` tokens of `index` into a node of their own between it and its parent.
    ///
    /// Costs the same whatever the length: no token, slot or hash is copied.
    pub fn split(&mut self, index: u32, at: usize) -> u32 {
        let hash = self.hash_of(index);
        let mut upper = self[index].split_off_front(at);
        let (parent, next, previous) = {
            let lower = &self[index];
            (lower.parent, lower.next_sibling, lower.previous_sibling)
        };
        upper.parent = parent;
        upper.next_sibling = next;
        upper.previous_sibling = previous;
        upper.first_child = index;
        upper.num_children = 1;
        let upper = self.arena.insert(upper);

        if let Some(entry) = self.children.find_mut(hash, |&child| child == index) {
            *entry = upper;
        }
        if previous == NONE {
            self[parent].first_child = upper;
        } else {
            self[previous].next_sibling = upper;
        }
        if next != NONE {
            self[next].previous_sibling = upper;
        }
        let lower = &mut self[index];
        lower.parent = upper;
        lower.next_sibling = NONE;
        lower.previous_sibling = NONE;
        self.enter(index);
        upper
    }

    /// Let the neighbours of `node`, and its parent, pass over it.
    fn relink(&mut self, node: &Node, next: u32, previous: u32) {
        if previous == NONE {
            self[node.parent].first_child = next;
        } else {
            self[previous].next_sibling = next;
        }
        if next != NONE {
            self[next].previous_sibling = previous;
        }
    }

    fn enter(&mut self, index: u32) {
        let Self {
            arena,
            children,
            hasher,
            page_size,
        } = self;
        let hash = |&child: &u32| {
            let node = &arena[child];
            hasher.hash_one((node.parent, &node.tokens()[..*page_size]))
        };
        children.insert_unique(hash(&index), index, hash);
    }

    fn hash_of(&self, index: u32) -> u64 {
        let node = &self[index];
        self.hash(node.parent, &node.tokens()[..self.page_size])
    }

    fn hash(&self, parent: u32, page: &[u32]) -> u64 {
        self.hasher.hash_one((parent, page))
    }
}

impl Index<u32> for Nodes {
    type Output = Node;

    fn index(&self, index: u32) -> &Node {
        &self.arena[index]
    }
}

impl IndexMut<u32> for Nodes {
    fn index_mut(&mut self, index: u32) -> &mut Node {
        &mut self.arena[index]
    }
}
