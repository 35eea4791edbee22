//! A replica's mirror for people to look at, while it goes on being used.

use super::router::Router;
use crate::error::RouterError;
use crate::index::{Branch, Listing, NoBranch};

/// Steps at most for a page; one that found less than it might says where to go on.
const STEPS: usize = 256;

/// A page of branches.
#[derive(Clone, Debug)]
pub struct Branches {
    /// None is newer than those before, below another branch; in no order where prompts begin.
    pub branches: Vec<Branch>,
    /// Where the next page begins; None after the last.
    pub next: Option<u64>,
    /// The index' count of stores; wraps around.
    pub clock: u32,
}

impl Router {
    /// The branches of a replica's mirror where prompts begin, or below the branch that begins with a block; at most
    /// `limit` of them, from where another page ended. Whoever wants the lock meanwhile gets it.
    ///
    /// # Errors
    /// Unknown replica; a block that begins no such branch, perhaps no longer.
    pub fn branches(
        &self,
        name: &str,
        below: Option<u64>,
        from: Option<u64>,
        limit: usize,
    ) -> Result<Branches, RouterError> {
        let _unchanged = self.between_batches();
        let id = self.core().fleet.find(name)?;
        let mut listing = Listing::new(below, from, limit);
        let mut steps = 0;
        let mut listed = Ok(true);
        self.go_on(|core| {
            listed = core.index.list_step(id, &mut listing);
            steps += 1;
            steps < STEPS && matches!(listed, Ok(true))
        });
        listed.map_err(|NoBranch(block)| RouterError::UnknownBranch {
            replica: name.to_owned(),
            block,
        })?;
        let mut branches = Vec::with_capacity(listing.found.len());
        let mut left = listing.found.iter();
        let mut clock = 0;
        self.go_on(|core| {
            clock = core.index.clock();
            let Some(&first) = left.next() else {
                return false;
            };
            branches.extend(core.index.branch(id, first));
            true
        });
        Ok(Branches {
            branches,
            next: listing.after,
            clock,
        })
    }

    /// Stores that the index has taken; wraps around.
    pub fn index_clock(&self) -> u32 {
        self.core().index.clock()
    }
}
