//! What prompts in flight will bring: their chains as radix trees, so that one walk along a prompt finds those that
//! have its beginning in common, however many others there are.
//!
//! A node is a stretch of blocks between two places where chains part or end, and knows where the prompts are that go
//! through it. A chain enters and leaves at the cost of its nodes and of the blocks that it shares, which are
//! compared one by one: what a replica announces need not be a chain, and still has to leave as it came. A walk
//! believes the hashes, as that of the index does. Chains that begin at the same number of a block make one tree, for
//! nothing is known of what lies before their beginning.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::index::{ReplicaId, common};

type NodeId = usize;

#[derive(Debug, Default)]
struct Node {
    /// Of a prompt that goes through here, or did.
    chain: Arc<[u64]>,
    /// The node's blocks in it.
    from: usize,
    to: usize,
    /// One for each prompt that goes through here; sorted.
    replicas: Vec<ReplicaId>,
    /// By their first block.
    children: HashMap<u64, NodeId>,
}

impl Node {
    fn leaf(chain: &Arc<[u64]>, from: usize, replica: ReplicaId) -> Self {
        Self {
            chain: Arc::clone(chain),
            from,
            to: chain.len(),
            replicas: vec![replica],
            children: HashMap::new(),
        }
    }

    fn blocks(&self) -> &[u64] {
        &self.chain[self.from..self.to]
    }

    fn enter(&mut self, replica: ReplicaId) {
        let place = self.replicas.partition_point(|&other| other < replica);
        self.replicas.insert(place, replica);
    }

    fn leave(&mut self, replica: ReplicaId) {
        if let Ok(place) = self.replicas.binary_search(&replica) {
            self.replicas.remove(place);
        }
    }

    /// Keeps the first `len` blocks and gives the others, with all that comes after them.
    fn cut(&mut self, len: usize) -> Self {
        let rest = Self {
            chain: Arc::clone(&self.chain),
            from: self.from + len,
            to: self.to,
            replicas: self.replicas.clone(),
            children: std::mem::take(&mut self.children),
        };
        self.to = rest.from;
        rest
    }
}

/// The chains of all prompts in flight.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    /// Of each tree, by the number of the block with which its chains begin: a node without blocks and replicas.
    roots: BTreeMap<usize, NodeId>,
    nodes: Vec<Node>,
    free: Vec<NodeId>,
}

impl Coming {
    /// A prompt is on its way to `replica`: its blocks from the one numbered `start` on.
    pub fn add(&mut self, replica: ReplicaId, start: usize, chain: &Arc<[u64]>) {
        if chain.is_empty() {
            return;
        }
        let (mut at, mut done) = (self.root(start), 0);
        while let Some(block) = chain.get(done) {
            let Some(&child) = self.nodes[at].children.get(block) else {
                let leaf = self.keep(Node::leaf(chain, done, replica));
                self.nodes[at].children.insert(*block, leaf);
                return;
            };
            let node = &mut self.nodes[child];
            let shared = same(node.blocks(), &chain[done..]);
            if shared < node.blocks().len() {
                let rest = node.cut(shared);
                let first = rest.blocks()[0];
                let rest = self.keep(rest);
                self.nodes[child].children.insert(first, rest);
            }
            self.nodes[child].enter(replica);
            (at, done) = (child, done + shared);
        }
    }

    /// The same prompt is no longer on its way.
    pub fn remove(&mut self, replica: ReplicaId, start: usize, chain: &[u64]) {
        let (mut at, mut done) = (self.root(start), 0);
        while let Some(block) = chain.get(done)
            && let Some(&child) = self.nodes[at].children.get(block)
        {
            let node = &mut self.nodes[child];
            node.leave(replica);
            if node.replicas.is_empty() {
                // It was the only prompt here, so nothing comes after.
                self.nodes[at].children.remove(block);
                self.take(child);
                break;
            }
            (at, done) = (child, done + node.blocks().len());
        }
        self.join(at, start);
    }

    /// How many leading blocks of a prompt others on their way share, and where those are, possibly more than once.
    /// Who shares many is also named with fewer.
    pub fn along<'a>(
        &'a self,
        chain: &'a [u64],
    ) -> impl Iterator<Item = (usize, &'a [ReplicaId])> + 'a {
        let trees = self.roots.range(..chain.len());
        trees.flat_map(move |(&start, &root)| {
            let (mut at, mut done) = (root, start);
            std::iter::from_fn(move || {
                at = *self.nodes[at].children.get(chain.get(done)?)?;
                let node = &self.nodes[at];
                done += common(node.blocks(), &chain[done..]);
                Some((done, &node.replicas[..]))
            })
        })
    }

    fn root(&mut self, start: usize) -> NodeId {
        if let Some(&root) = self.roots.get(&start) {
            return root;
        }
        let root = self.keep(Node::default());
        self.roots.insert(start, root);
        root
    }

    /// Makes one of a node and the only one after it, if all prompts go on there. A root goes with its last child.
    fn join(&mut self, at: NodeId, start: usize) {
        let node = &self.nodes[at];
        let mut children = node.children.values();
        match (children.next(), children.next()) {
            (None, _) if node.replicas.is_empty() => {
                self.roots.remove(&start);
                self.take(at);
            }
            (Some(&child), None) if self.nodes[child].replicas.len() == node.replicas.len() => {
                let from = node.from;
                self.nodes[at] = Node {
                    from,
                    ..self.take(child)
                };
            }
            _ => {}
        }
    }

    fn keep(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id] = node;
            return id;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn take(&mut self, id: NodeId) -> Node {
        self.free.push(id);
        std::mem::take(&mut self.nodes[id])
    }
}

/// How many leading blocks are the same, each one compared.
fn same(a: &[u64], b: &[u64]) -> usize {
    let len = a.len().min(b.len());
    if a[..len] == b[..len] {
        return len;
    }
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pick::mix;

    /// Hashes that name all that comes before them, from the block numbered `start` on.
    fn chain(blocks: &[u64], start: usize) -> Arc<[u64]> {
        let hashes = blocks.iter().scan(0, |before, &block| {
            *before = mix(*before ^ (block + 1));
            Some(*before)
        });
        hashes.skip(start).collect()
    }

    #[derive(Clone, Debug)]
    struct Prompt {
        replica: ReplicaId,
        start: usize,
        chain: Arc<[u64]>,
    }

    impl Prompt {
        fn shares(&self, whole: &[u64]) -> usize {
            let same = same(&self.chain, whole.get(self.start..).unwrap_or(&[]));
            if same == 0 { 0 } else { self.start + same }
        }
    }

    fn blocks() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop::sample::select(vec![0, 0, 0, 0, 1]), 0..12)
    }

    fn prompt() -> impl Strategy<Value = Prompt> {
        (0..3u32, blocks(), prop::sample::select(vec![0, 0, 1, 5])).prop_map(
            |(replica, blocks, start)| Prompt {
                replica,
                start,
                chain: chain(&blocks, start),
            },
        )
    }

    /// Chains with the same block after different ones: no hash does that.
    fn nonsense() -> impl Strategy<Value = Prompt> {
        (0..3u32, blocks(), 0..2usize).prop_map(|(replica, blocks, start)| Prompt {
            replica,
            start,
            chain: blocks.into(),
        })
    }

    fn is_empty(coming: &Coming) -> bool {
        coming.roots.is_empty() && coming.free.len() == coming.nodes.len()
    }

    proptest! {
        #[test]
        fn along_a_prompt_is_what_each_one_shares_with_it(
            steps in prop::collection::vec((prompt(), any::<prop::sample::Index>(), any::<bool>()), 1..60),
            asked in blocks(),
        ) {
            let (mut coming, mut prompts) = (Coming::default(), Vec::new());
            let asked = chain(&asked, 0);
            for (prompt, other, adds) in steps {
                if adds || prompts.is_empty() {
                    coming.add(prompt.replica, prompt.start, &prompt.chain);
                    prompts.push(prompt);
                } else {
                    let gone: Prompt = prompts.swap_remove(other.index(prompts.len()));
                    coming.remove(gone.replica, gone.start, &gone.chain);
                }
                for replica in 0..3 {
                    let along = coming.along(&asked).filter(|(_, at)| at.contains(&replica));
                    let there = prompts.iter().filter(|prompt| prompt.replica == replica);
                    prop_assert_eq!(
                        along.map(|(shared, _)| shared).max().unwrap_or(0),
                        there.map(|prompt| prompt.shares(&asked)).max().unwrap_or(0)
                    );
                }
                let nodes = coming.nodes.len() - coming.free.len() - coming.roots.len();
                prop_assert!(nodes <= 2 * prompts.len());
            }
            for gone in prompts {
                coming.remove(gone.replica, gone.start, &gone.chain);
            }
            prop_assert!(is_empty(&coming));
        }

        #[test]
        fn nonsense_leaves_nothing_behind(
            prompts in prop::collection::vec(nonsense(), 1..40), asked in blocks(),
        ) {
            let mut coming = Coming::default();
            for prompt in &prompts {
                coming.add(prompt.replica, prompt.start, &prompt.chain);
            }
            prop_assert!(coming.along(&asked).all(|(shared, _)| shared <= asked.len()));
            for gone in prompts {
                coming.remove(gone.replica, gone.start, &gone.chain);
            }
            prop_assert!(is_empty(&coming));
        }
    }
}
