//! Making a place in the tree a node of its own.

use super::Tree;
use super::matching::Place;

impl Tree {
    /// The node that ends exactly at `place`, split off if the place is inside an edge.
    ///
    /// The lower part keeps its handle and its recency: its tokens were not used. The upper part is new,
    /// with the locks and hits of the whole; whoever split it stamps it. Sizes and deltas do not change.
    pub(super) fn settle(&mut self, place: &Place) -> u32 {
        if place.within == self.nodes[place.node].len() {
            return place.node;
        }
        // The lower part begins later than the whole, which some policies mind.
        self.evictable.remove(&self.nodes, place.node);
        let upper = self.nodes.split(place.node, place.within);
        self.evictable.insert(&self.nodes, place.node);
        upper
    }
}
