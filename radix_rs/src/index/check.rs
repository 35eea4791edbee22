//! Everything that must hold, computed anew.

use std::collections::HashMap;

use super::block_map::At;
use super::{Index, ReplicaId, Tally};
use crate::chain::NO_PARENT;

impl Index {
    /// The first invariant that does not hold, in words.
    ///
    /// # Errors
    /// That invariant.
    pub fn check(&self) -> Result<(), String> {
        self.check_blocks()?;
        self.check_links()?;
        self.check_form()?;
        self.check_tallies()
    }

    fn check_blocks(&self) -> Result<(), String> {
        let mut total = 0;
        for (id, run) in self.runs.iter() {
            total += run.len();
            for (position, &hash) in (run.start..).zip(&run.hashes) {
                let at = At { run: id, position };
                if self.blocks.find(hash) != Some(at) {
                    return Err(format!("block {hash:x} is not mapped to {at:?}"));
                }
            }
            let sorted = run.partial.windows(2).all(|pair| pair[0].0 < pair[1].0);
            let proper = run.partial.iter().all(|&(replica, depth)| {
                depth > 0 && (depth as usize) < run.len() && !run.whole.contains(replica)
            });
            if !sorted || !proper {
                return Err(format!("run {id} has partial holders {:?}", run.partial));
            }
        }
        if total != self.blocks.len() {
            let mapped = self.blocks.len();
            return Err(format!("{total} blocks in runs, {mapped} in the map"));
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), String> {
        let mut children: HashMap<u64, (u32, u64)> = HashMap::new();
        for (id, run) in self.runs.iter() {
            if run.parent != NO_PARENT {
                let ends = self
                    .blocks
                    .find(run.parent)
                    .map(|at| self.runs[at.run].last());
                if ends != Some(run.parent) {
                    return Err(format!("run {id}: no run ends with its parent"));
                }
                let of = children.entry(run.parent).or_default();
                of.0 += 1;
                of.1 ^= run.hashes[0];
            }
        }
        for (id, run) in self.runs.iter() {
            let found = children.get(&run.last()).copied().unwrap_or_default();
            let kept = (run.children, run.child_xor);
            if kept != found {
                return Err(format!("run {id}: children {kept:?}, found {found:?}"));
            }
        }
        Ok(())
    }

    fn check_form(&self) -> Result<(), String> {
        for (id, run) in self.runs.iter() {
            if run.children == 0 && run.held() < run.len() {
                return Err(format!("run {id} keeps blocks nobody holds"));
            }
            if let Some(child) = self.joinable_child(id) {
                return Err(format!("runs {id} and {child} are not joined"));
            }
        }
        Ok(())
    }

    fn check_tallies(&self) -> Result<(), String> {
        for (replica, &kept) in self.tallies.iter().enumerate() {
            let mut found = Tally::default();
            found.add(&self.blocks(replica as ReplicaId));
            if kept != found {
                return Err(format!("replica {replica}: {kept:?}, found {found:?}"));
            }
        }
        Ok(())
    }
}
