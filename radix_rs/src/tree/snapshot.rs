//! The whole tree at once: as events for a router that starts, as text for eyes.

use std::fmt::Write;

use super::node::Node;
use super::{Tree, TreeError};
use crate::chain::NO_PARENT;
use crate::delta::{Event, Stored};

/// The blocks of a tree as they were, in chunks of `Stored` events, parents first. A run may go on in the next
/// chunk. Of its own: the tree may change meanwhile.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    max_blocks: usize,
    hashes: Vec<u64>,
    /// Where each run begins in `hashes`, and the block before it; the last one first.
    runs: Vec<(usize, Option<u64>)>,
}

impl Snapshot {
    fn push(&mut self, before: Option<u64>, hashes: impl Iterator<Item = u64>) -> Option<u64> {
        let begin = self.hashes.len();
        self.hashes.extend(hashes);
        if self.hashes.len() == begin {
            return before;
        }
        let goes_on = begin > 0 && before == Some(self.hashes[begin - 1]);
        if !goes_on {
            self.runs.push((begin, before));
        }
        self.hashes.last().copied()
    }
}

impl Iterator for Snapshot {
    type Item = Vec<Event>;

    fn next(&mut self) -> Option<Vec<Event>> {
        let mut events = Vec::new();
        let mut room = self.max_blocks;
        while room > 0
            && let Some((begin, before)) = self.runs.pop()
        {
            let run_end = self.runs.last().map_or(self.hashes.len(), |run| run.0);
            let end = run_end.min(begin + room);
            room -= end - begin;
            if end < run_end {
                self.runs.push((end, Some(self.hashes[end - 1])));
            }
            events.push(Event::Stored(Stored {
                parent: before.unwrap_or(NO_PARENT),
                hashes: self.hashes[begin..end].to_vec(),
            }));
        }
        (!events.is_empty()).then_some(events)
    }
}

impl Tree {
    /// All blocks, in chunks of at most `max_blocks`. Only the blocks are copied here; the events are made as they
    /// are asked for.
    ///
    /// # Errors
    /// [`TreeError::EmptyChunk`].
    pub fn snapshot(&self, max_blocks: usize) -> Result<Snapshot, TreeError> {
        if max_blocks == 0 {
            return Err(TreeError::EmptyChunk);
        }
        let (blocks, _) = self.count_digest();
        let mut snapshot = Snapshot {
            max_blocks,
            hashes: Vec::with_capacity(usize::try_from(blocks).unwrap_or(0)),
            runs: Vec::new(),
        };
        // Each with the last block before it. No recursion: a path may have a node for each page.
        let mut stack: Vec<(u32, Option<u64>)> = self.roots().map(|root| (root, None)).collect();
        while let Some((index, before)) = stack.pop() {
            let last = snapshot.push(before, self.nodes[index].hashes(self.block_size));
            stack.extend(self.nodes.children(index).map(|child| (child, last)));
        }
        snapshot.runs.reverse();
        Ok(snapshot)
    }

    /// The tree as indented text: for each node its length, lock count, hits and slots as half-open
    /// ranges. Siblings stand in the order of their tokens. No token ids: they are somebody's prompt.
    pub fn dump(&self) -> String {
        // Writing to a string cannot fail: the results of `writeln` are ignored below.
        let mut text = String::from("root\n");
        self.dump_below(self.root, &mut text);
        for (namespace, root) in self.namespaces.sorted() {
            let (extra_key, cache_salt) = (namespace.extra_key, namespace.cache_salt);
            let _ = writeln!(
                text,
                "root extra_key={extra_key:?} cache_salt={cache_salt:?}"
            );
            self.dump_below(root, &mut text);
        }
        text
    }

    fn dump_below(&self, root: u32, text: &mut String) {
        let mut stack = vec![(root, 0)];
        while let Some((index, depth)) = stack.pop() {
            if depth > 0 {
                push_line(&self.nodes[index], depth, text);
            }
            let mut children: Vec<u32> = self.nodes.children(index).collect();
            children.sort_by_key(|&child| std::cmp::Reverse(self.nodes[child].tokens()));
            stack.extend(children.into_iter().map(|child| (child, depth + 1)));
        }
    }

    pub(super) fn roots(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(self.root).chain(self.namespaces.roots())
    }
}

fn push_line(node: &Node, depth: usize, text: &mut String) {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for slot in node.slots().map(i64::from) {
        match ranges.last_mut() {
            Some((_, end)) if *end == slot => *end += 1,
            _ => ranges.push((slot, slot + 1)),
        }
    }
    let ranges: Vec<String> = ranges
        .iter()
        .map(|(start, end)| format!("{start}..{end}"))
        .collect();
    let indent = 2 * depth;
    let _ = writeln!(
        text,
        "{:indent$}{} lock={} hits={} slots={}",
        "",
        node.len(),
        node.lock_ref,
        node.hit_count,
        ranges.join(",")
    );
}
