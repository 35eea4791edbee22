//! One walk answers for all replicas: it costs runs, not blocks.

use super::run::Run;
use super::{Index, ReplicaId, ReplicaSet};

/// Leading blocks of a prompt that each replica holds.
#[derive(Debug, Default)]
pub struct Matches {
    blocks: Vec<u32>,
}

impl Matches {
    /// Of one replica, in blocks.
    pub fn of(&self, replica: ReplicaId) -> usize {
        self.blocks.get(replica as usize).map_or(0, |&n| n as usize)
    }
}

impl Index {
    /// How many leading blocks of `chain` each replica of `among` holds; the others get 0.
    pub(crate) fn walk(&self, chain: &[u64], among: &ReplicaSet, matches: &mut Matches) {
        matches.blocks.clear();
        matches.blocks.resize(self.tallies.len(), 0);
        let mut alive = among.clone();
        let mut done = 0;
        while !alive.is_empty()
            && let Some(at) = chain.get(done).and_then(|&hash| self.blocks.find(hash))
        {
            let run = &self.runs[at.run];
            let from = (at.position - run.start) as usize;
            let len = common(&run.hashes[from..], &chain[done..]);
            leave(run, from, len, done, &mut alive, &mut matches.blocks);
            done += len;
        }
        for replica in alive.iter() {
            matches.blocks[replica as usize] = done as u32;
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

/// Takes from `alive` those that do not hold `len` blocks of the run from offset `from` on, and notes how far
/// they came; `done` blocks lie before.
fn leave(
    run: &Run,
    from: usize,
    len: usize,
    done: usize,
    alive: &mut ReplicaSet,
    blocks: &mut [u32],
) {
    let gone = alive.split_off_outside(&run.whole);
    for replica in gone.iter() {
        blocks[replica as usize] = done as u32;
    }
    for &(replica, depth) in &run.partial {
        if gone.contains(replica) {
            let held = (depth as usize).saturating_sub(from);
            if held >= len {
                alive.insert(replica);
            } else {
                blocks[replica as usize] = (done + held) as u32;
            }
        }
    }
}
