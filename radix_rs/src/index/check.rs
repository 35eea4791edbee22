//! Everything that must hold, computed anew.

use std::collections::{BTreeSet, HashMap};

use super::run::RunId;
use super::{Index, ReplicaId, Tally};

impl Index {
    /// The first invariant that does not hold, in words.
    ///
    /// # Errors
    /// That invariant.
    pub fn check(&self) -> Result<(), String> {
        self.check_blocks()?;
        self.check_links()?;
        self.check_form()?;
        self.check_queue()?;
        self.check_tallies()
    }

    fn check_blocks(&self) -> Result<(), String> {
        let mut total = 0;
        for (id, run) in self.runs.iter() {
            let (span, partial) = (&run.span, &run.holders.partial);
            total += span.len;
            if span.last != span.get(span.len - 1) {
                return Err(format!("run {id} keeps {:x} as its last block", span.last));
            }
            for (offset, hash) in span.range(0, span.len).enumerate() {
                // A publisher may have a block at two places.
                let found = self.find(hash);
                let same = found.is_some_and(|at| self.runs[at.run].span.get(at.offset) == hash);
                if !same {
                    return Err(format!(
                        "block {hash:x} is not found at {offset} of run {id}"
                    ));
                }
            }
            let sorted = partial.windows(2).all(|pair| pair[0].0 < pair[1].0);
            let proper = partial.iter().all(|&(replica, depth)| {
                let whole = run.holders.whole.contains(replica);
                depth > 0 && (depth as usize) < span.len && !whole
            });
            if !sorted || !proper {
                return Err(format!("run {id} has partial holders {partial:?}"));
            }
            if self.starts.find(span.first()).is_none() {
                return Err(format!("run {id} has no start"));
            }
        }
        if total != self.blocks.len() {
            let counted = self.blocks.len();
            return Err(format!("{total} blocks in runs, {counted} counted"));
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), String> {
        let mut children: HashMap<RunId, BTreeSet<RunId>> = HashMap::new();
        let mut orphans = 0;
        for (id, run) in self.runs.iter() {
            orphans += usize::from(run.orphan);
            if let Some(parent) = run.parent {
                if self.runs.get(parent).is_none() || run.orphan {
                    return Err(format!("run {id}: its parent {parent} is none"));
                }
                children.entry(parent).or_default().insert(id);
            }
        }
        if orphans != self.orphans {
            return Err(format!("{orphans} orphans, {} counted", self.orphans));
        }
        for (id, run) in self.runs.iter() {
            let found = children.remove(&id).unwrap_or_default();
            let kept: BTreeSet<_> = self.children(id).collect();
            if kept != found || kept.len() != run.children as usize {
                return Err(format!("run {id}: children {kept:?}, found {found:?}"));
            }
        }
        Ok(())
    }

    fn check_form(&self) -> Result<(), String> {
        for (id, run) in self.runs.iter() {
            if run.children == 0 && run.holders.held(run.len()) < run.len() {
                return Err(format!("run {id} keeps blocks nobody holds"));
            }
            if let Some(child) = self.joinable_child(id) {
                return Err(format!("runs {id} and {child} are not joined"));
            }
        }
        Ok(())
    }

    fn check_queue(&self) -> Result<(), String> {
        let mut bytes = 0;
        for (id, run) in self.runs.iter() {
            bytes += run.heap_bytes();
            if run.children == 0 && run.place.is_none() {
                return Err(format!("run {id} ends a branch and is not queued"));
            }
        }
        if bytes != self.run_heap_bytes {
            let counted = self.run_heap_bytes;
            return Err(format!("runs take {bytes} bytes, {counted} counted"));
        }
        let queued = self.runs.iter().filter(|(_, run)| run.place.is_some());
        let (queued, listed) = (queued.count(), self.queue.len(&self.runs));
        if queued != listed {
            return Err(format!("{queued} runs are queued, {listed} listed"));
        }
        Ok(())
    }

    fn check_tallies(&self) -> Result<(), String> {
        for (replica, &kept) in self.known.iter().enumerate() {
            let found = Tally::of(std::iter::once(&self.blocks(replica as ReplicaId)[..]));
            if kept != found {
                return Err(format!("replica {replica}: {kept:?}, found {found:?}"));
            }
        }
        Ok(())
    }
}
