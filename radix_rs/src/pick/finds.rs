//! What a prompt finds: replicas by how much of it they hold or will hold, those with the most first.
//!
//! Most replicas of a large fleet are alike to a prompt, and it costs least where most of it is. So they come in
//! groups, and who stops at the first that are too dear has not looked at the others.

use std::cmp::Reverse;
use std::slice;

use crate::index::{Matches, ReplicaId, ReplicaSet};

/// One replica, in leading blocks of the prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Find {
    pub replica: ReplicaId,
    /// In its mirror.
    pub matched: usize,
    /// There, or coming with a prompt in flight.
    pub expected: usize,
}

#[derive(Clone, Copy)]
enum Group<'a> {
    /// They hold that much.
    Holding(&'a ReplicaSet),
    /// It holds that much.
    Parting(&'a ReplicaId),
    /// It comes to them; in any order, and possibly more than once.
    Expecting(&'a [ReplicaId]),
}

impl Group<'_> {
    fn replicas(self) -> impl Iterator<Item = ReplicaId> {
        let (set, list) = match self {
            Self::Holding(set) => (Some(set), &[][..]),
            Self::Parting(replica) => (None, slice::from_ref(replica)),
            Self::Expecting(list) => (None, list),
        };
        let set = set.into_iter().flat_map(ReplicaSet::iter);
        set.chain(list.iter().copied())
    }
}

pub(crate) struct Finds<'a> {
    matches: &'a Matches,
    /// Blocks, and who holds or expects as many or more; the most first.
    groups: Vec<(usize, Group<'a>)>,
}

impl<'a> Finds<'a> {
    /// `coming`: blocks, and where they will be.
    pub fn new(
        matches: &'a Matches,
        coming: impl Iterator<Item = (usize, &'a [ReplicaId])>,
    ) -> Self {
        let steps = matches.steps();
        let steps = steps.map(|(blocks, set)| (blocks, Group::Holding(set)));
        let within = matches.within();
        let within = within.map(|(blocks, replica)| (blocks, Group::Parting(replica)));
        let coming = coming.map(|(blocks, list)| (blocks, Group::Expecting(list)));
        let mut groups: Vec<_> = steps.chain(within).chain(coming).collect();
        groups.sort_by_key(|&(blocks, _)| Reverse(blocks));
        Self { matches, groups }
    }

    /// All of `among`, those that hold or expect most of the prompt first.
    pub fn most_first(&self, among: &ReplicaSet) -> impl Iterator<Item = Find> {
        let mut left = among.clone();
        let groups = self.groups.iter();
        let all = groups.flat_map(|&(expected, group)| {
            let matched = match group {
                Group::Holding(_) | Group::Parting(_) => Some(expected),
                Group::Expecting(_) => None,
            };
            let replicas = group.replicas();
            replicas.map(move |replica| (replica, matched, expected))
        });
        all.filter(move |&(replica, ..)| left.remove(replica)).map(
            |(replica, matched, expected)| Find {
                replica,
                matched: matched.unwrap_or_else(|| self.matches.of(replica)),
                expected,
            },
        )
    }

    /// Blocks, and who holds as many, the most first; a replica may come again with fewer.
    pub fn longest_first(&self) -> impl Iterator<Item = (usize, ReplicaId)> {
        let holding = self
            .groups
            .iter()
            .filter(|(_, group)| !matches!(group, Group::Expecting(_)));
        holding.flat_map(|&(blocks, group)| group.replicas().map(move |replica| (blocks, replica)))
    }
}
