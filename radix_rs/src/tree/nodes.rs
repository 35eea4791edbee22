//! How nodes hang together: parents, siblings, and one table of all children.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::arena::Arena;
use super::node::{NONE, Node};

/// All nodes, each linked to its parent.
///
/// Children are found by their first page. One table serves all parents: a lookup costs the same among
/// one child and among 100,000, and a node needs no table of its own. Siblings form a list as well, so
/// that an only child, the usual case, is found without hashing. Each node knows the hash of its entry: to
/// take a node out, or to move all when the table grows, no edge is read.
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
        let hash = self.hash(parent, page);
        self.children
            .find(spread(hash), |&child| {
                let child = &self[child];
                child.page_hash == hash
                    && child.parent == parent
                    && child.tokens()[..self.page_size] == *page
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
        let hash = spread(self[index].page_hash);
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
        let mut upper = self[index].split_off_front(at);
        let hash = spread(upper.page_hash);
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
        let node = &self[index];
        let hash = self.hash(node.parent, &node.tokens()[..self.page_size]);
        self[index].page_hash = hash;
        let Self {
            arena, children, ..
        } = self;
        children.insert_unique(spread(hash), index, |&child| spread(arena[child].page_hash));
    }

    /// Half of a hash, which is all that a node keeps of it.
    fn hash(&self, parent: u32, page: &[u32]) -> u32 {
        (self.hasher.hash_one((parent, page)) >> 32) as u32
    }
}

/// The table takes an entry's place from the lower bits, and its tag from the upper ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
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
