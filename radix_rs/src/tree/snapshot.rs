//! The whole tree at once: as events for a router that starts, as text for eyes.

use std::fmt::Write;

use super::blocks::push_run;
use super::node::Node;
use super::{Tree, TreeError};
use crate::delta::Event;

impl Tree {
    /// All blocks as `Stored` events, in chunks of at most `max_blocks`, parents first. A run may go on in
    /// the next chunk. No chunks if there are no blocks.
    ///
    /// # Errors
    /// [`TreeError::EmptyChunk`].
    pub fn snapshot(&self, max_blocks: usize) -> Result<Vec<Vec<Event>>, TreeError> {
        if max_blocks == 0 {
            return Err(TreeError::EmptyChunk);
        }
        let mut chunks = Vec::new();
        let mut chunk = Vec::new();
        let mut room = max_blocks;
        // Each with the last block before it. No recursion: a path may have a node for each page.
        let mut stack: Vec<(u32, Option<u64>)> = self.roots().map(|root| (root, None)).collect();
        while let Some((index, mut before)) = stack.pop() {
            let hashes: Vec<u64> = self.nodes[index].hashes(self.block_size).collect();
            let mut rest = &hashes[..];
            while !rest.is_empty() {
                let (run, later) = rest.split_at(rest.len().min(room));
                push_run(&mut chunk, before, run);
                before = run.last().copied();
                room -= run.len();
                rest = later;
                if room == 0 {
                    chunks.push(std::mem::take(&mut chunk));
                    room = max_blocks;
                }
            }
            stack.extend(self.nodes.children(index).map(|child| (child, before)));
        }
        if !chunk.is_empty() {
            chunks.push(chunk);
        }
        Ok(chunks)
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
