//! Where a block stands that a replica goes on from: at hand, mostly, and otherwise looked for outside of the steps.

use super::blocks::At;
use super::locator::Slot;
use super::{Index, ReplicaId};

/// A block that is looked for.
#[derive(Debug)]
pub(super) struct Sought {
    replica: ReplicaId,
    hash: u64,
    search: Search,
}

#[derive(Debug)]
enum Search {
    Asked,
    /// It may be here.
    Places(Vec<Slot>),
    Found(Option<At>),
}

impl Sought {
    fn is(&self, replica: ReplicaId, hash: u64) -> bool {
        self.replica == replica && self.hash == hash
    }

    /// The block that the locator is to be asked for.
    pub fn asks(&self) -> Option<u64> {
        matches!(self.search, Search::Asked).then_some(self.hash)
    }

    pub fn may_be_at(&mut self, places: Vec<Slot>) {
        self.search = Search::Places(places);
    }
}

impl Index {
    /// Has a block looked for, unless it is at hand: whether that took this step. An errand says at which places it may
    /// be, the step after it looks there.
    pub(super) fn seek(&mut self, replica: ReplicaId, guess: At, hash: u64) -> bool {
        let sought = self.sought.take().filter(|it| it.is(replica, hash));
        let (search, takes_step) = match sought.map(|it| it.search) {
            None if self.at_hand(replica, guess, hash).is_some() => return false,
            None => (Search::Asked, true),
            Some(Search::Places(places)) => {
                let at = self.find_among(replica, places.into_iter(), hash);
                (Search::Found(at), true)
            }
            Some(Search::Found(at)) => (Search::Found(at), false),
            Some(Search::Asked) => (Search::Asked, false), // nobody ran the errand
        };
        self.sought = Some(Sought {
            replica,
            hash,
            search,
        });
        takes_step
    }

    /// Where a block stands: where it was sought, or at hand, or elsewhere.
    pub(super) fn find_end(&mut self, replica: ReplicaId, guess: At, hash: u64) -> Option<At> {
        let sought = self.sought.take().filter(|it| it.is(replica, hash));
        match sought.map(|it| it.search) {
            Some(Search::Found(at)) => at,
            _ => self
                .at_hand(replica, guess, hash)
                .or_else(|| self.find_among(replica, self.blocks.places(hash), hash)),
        }
    }

    /// At the guess, or where the replica's part of that run ends, if it is there.
    fn at_hand(&self, replica: ReplicaId, guess: At, hash: u64) -> Option<At> {
        let run = self.runs.get(guess.run)?;
        let depth = run.holders.depth(replica, run.len());
        let is_it = |&offset: &usize| offset < depth && run.span.get(offset) == hash;
        let offsets = [depth.wrapping_sub(1), guess.offset];
        offsets.into_iter().find(is_it).map(|offset| At {
            run: guess.run,
            offset,
        })
    }

    /// A publisher that lies may have a block at two places: what others hold must not hide what this one does.
    fn find_among(
        &self,
        replica: ReplicaId,
        places: impl Iterator<Item = Slot>,
        hash: u64,
    ) -> Option<At> {
        let mut first = None;
        let is_held = |at| {
            first.get_or_insert(at);
            self.is_held(replica, at)
        };
        let held = self.blocks.find_among(places, &self.runs, hash, is_held);
        held.or(first)
    }
}
