//! What a replica has cached: the least recently used blocks go first, and children before their parents.

use super::trace::BlockId;

const ABSENT: u32 = u32::MAX;

/// A block's neighbours in the ring of those that are cached, or [`ABSENT`].
#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// A set of blocks closed under "the block before".
#[derive(Debug)]
pub(super) struct Cache {
    capacity: usize,
    len: usize,
    /// By block; the last one is where the ring begins and ends.
    links: Vec<Link>,
}

impl Cache {
    /// Room for `capacity` of the blocks `0..num_blocks`.
    pub fn new(capacity: usize, num_blocks: usize) -> Self {
        let absent = Link {
            older: ABSENT,
            newer: ABSENT,
        };
        let mut links = vec![absent; num_blocks + 1];
        let anchor = u32::try_from(num_blocks).expect("fewer than 2^32 blocks in memory");
        links[num_blocks] = Link {
            older: anchor,
            newer: anchor,
        };
        Self {
            capacity,
            len: 0,
            links,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.links[block as usize].older != ABSENT
    }

    /// How many of a chain's leading blocks are cached.
    pub fn matched(&self, chain: &[BlockId]) -> usize {
        chain.partition_point(|&block| self.contains(block))
    }

    /// All cached blocks.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        let anchor = self.anchor();
        let next = move |block: u32| (block != anchor).then_some(block);
        std::iter::successors(next(self.links[anchor as usize].newer), move |&block| {
            next(self.links[block as usize].newer)
        })
    }

    /// A chain is used: it is cached then, and its beginning goes last.
    pub fn keep(&mut self, chain: &[BlockId]) {
        for &block in chain.iter().rev() {
            if self.contains(block) {
                self.unlink(block);
            }
            self.link(block);
        }
    }

    /// Takes the block that goes next, if there are too many.
    pub fn evict(&mut self) -> Option<BlockId> {
        if self.len <= self.capacity {
            return None;
        }
        let oldest = self.links[self.anchor() as usize].newer;
        self.unlink(oldest);
        Some(oldest)
    }

    fn anchor(&self) -> u32 {
        u32::try_from(self.links.len() - 1).expect("as when it was made")
    }

    fn link(&mut self, block: BlockId) {
        let anchor = self.anchor();
        let newest = self.links[anchor as usize].older;
        self.links[block as usize] = Link {
            older: newest,
            newer: anchor,
        };
        self.links[newest as usize].newer = block;
        self.links[anchor as usize].older = block;
        self.len += 1;
    }

    fn unlink(&mut self, block: BlockId) {
        let Link { older, newer } = self.links[block as usize];
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[block as usize].older = ABSENT;
        self.len -= 1;
    }
}
