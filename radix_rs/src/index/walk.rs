//! One walk answers for all replicas: it costs runs, not blocks.

use super::holders::Holders;
use super::run::Run;
use super::{Index, ReplicaId, ReplicaSet};

/// Leading blocks of a prompt that each replica holds.
#[derive(Debug, Default)]
pub struct Matches {
    blocks: Vec<u32>,
    /// Kept to spare the allocations.
    alive: ReplicaSet,
    gone: ReplicaSet,
}

impl Matches {
    /// Of one replica, in blocks.
    pub fn of(&self, replica: ReplicaId) -> usize {
        self.blocks.get(replica as usize).map_or(0, |&n| n as usize)
    }
}

impl Index {
    /// How many leading blocks of `chain` each replica of `among` holds; the others get 0.
    pub fn walk(&self, chain: &[u64], among: &ReplicaSet, matches: &mut Matches) {
        let Matches {
            blocks,
            alive,
            gone,
        } = matches;
        blocks.clear();
        blocks.resize(self.known.len(), 0);
        alive.clone_from(among);
        let (mut done, mut deepest) = (0, None);
        while !alive.is_empty()
            && let Some(run) = chain.get(done).and_then(|&hash| self.starts.find(hash))
        {
            let run = &self.runs[run];
            let Run { span, holders, .. } = run;
            let len = span.common(&chain[done..]);
            leave(holders, len, done, alive, gone, blocks);
            done += len;
            deepest = Some(run);
        }
        if let Some(run) = deepest {
            run.touch(self.clock);
        }
        for replica in alive.iter() {
            blocks[replica as usize] = done as u32;
        }
    }
}

/// Leading blocks that two chains share, both of them not empty. A hash names all that lies before it, so the
/// last one decides for all, and where they part is found by bisection.
pub(crate) fn common(a: &[u64], b: &[u64]) -> usize {
    let len = a.len().min(b.len());
    if a[len - 1] == b[len - 1] {
        return len;
    }
    bisect(len - 1, |i| a[i] == b[i])
}

/// How many of 0, 1, 2, ... `len - 1` come before `holds` turns false.
pub(crate) fn bisect(len: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut yes, mut no) = (0, len);
    while yes < no {
        let middle = yes.midpoint(no);
        if holds(middle) {
            yes = middle + 1;
        } else {
            no = middle;
        }
    }
    yes
}

/// Takes from `alive` those that do not hold the first `len` blocks of a run, and notes how far
/// they came; `done` blocks lie before.
fn leave(
    holders: &Holders,
    len: usize,
    done: usize,
    alive: &mut ReplicaSet,
    gone: &mut ReplicaSet,
    blocks: &mut [u32],
) {
    alive.split_outside_into(&holders.whole, gone);
    for replica in gone.iter() {
        blocks[replica as usize] = done as u32;
    }
    for &(replica, depth) in &holders.partial {
        if gone.contains(replica) {
            let held = depth as usize;
            if held >= len {
                alive.insert(replica);
            } else {
                blocks[replica as usize] = (done + held) as u32;
            }
        }
    }
}
