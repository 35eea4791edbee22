//! One walk answers for all replicas: it costs runs, not blocks.

use super::run::Run;
use super::{Index, ReplicaId, ReplicaSet};

/// Who holds how many leading blocks of a prompt.
#[derive(Debug, Default)]
pub struct Matches {
    /// Blocks, and who holds them all; from step to step there are more blocks and fewer replicas.
    steps: Vec<(usize, ReplicaSet)>,
    /// Blocks, and who holds them and no further one of the same run.
    within: Vec<(usize, ReplicaId)>,
}

impl Matches {
    /// Of one replica, in blocks.
    pub fn of(&self, replica: ReplicaId) -> usize {
        let is_it = |&&(_, holder): &&(usize, ReplicaId)| holder == replica;
        if let Some(&(blocks, _)) = self.within.iter().find(is_it) {
            return blocks;
        }
        let mut deepest_first = self.steps.iter().rev();
        let last = deepest_first.find(|(_, holders)| holders.contains(replica));
        last.map_or(0, |&(blocks, _)| blocks)
    }

    /// Blocks, and who holds them all, perhaps more.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (usize, &ReplicaSet)> {
        self.steps
            .iter()
            .map(|(blocks, holders)| (*blocks, holders))
    }

    /// Blocks, and who holds just these, of those that part from the prompt within a run.
    pub(crate) fn within(&self) -> impl Iterator<Item = (usize, &ReplicaId)> {
        self.within.iter().map(|(blocks, holder)| (*blocks, holder))
    }
}

impl Index {
    /// How many leading blocks of `chain` each replica of `among` holds; the others get 0.
    pub fn walk(&self, chain: &[u64], among: &ReplicaSet, matches: &mut Matches) {
        let Matches { steps, within } = matches;
        steps.clear();
        within.clear();
        let (mut done, mut deepest) = (0, None);
        let mut alive = among.clone();
        while !alive.is_empty()
            && let Some(run) = chain.get(done).and_then(|&hash| self.starts.find(hash))
        {
            let run = &self.runs[run];
            let len = run.span.common(&chain[done..]);
            if !alive.is_subset(&run.holders.whole) {
                let stay = stay(run, len, &alive, |held, replica| {
                    within.push((done + held, replica));
                });
                if !alive.is_subset(&stay) {
                    steps.push((done, std::mem::replace(&mut alive, stay)));
                }
            }
            done += len;
            deepest = Some(run);
        }
        if let Some(run) = deepest {
            run.touch(self.clock);
        }
        steps.push((done, alive));
    }
}

/// Those of `alive` that hold the first `len` blocks of a run. The others are named with how many they hold, if
/// that is any.
fn stay(
    run: &Run,
    len: usize,
    alive: &ReplicaSet,
    mut leaves: impl FnMut(usize, ReplicaId),
) -> ReplicaSet {
    let mut stay = alive.and(&run.holders.whole);
    for &(replica, held) in &run.holders.partial {
        if alive.contains(replica) {
            if held as usize >= len {
                stay.insert(replica);
            } else {
                leaves(held as usize, replica);
            }
        }
    }
    stay
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
