//! Where nodes and receipts live: a vector addressed by index, with handles that are never reused.

use std::ops::{Index, IndexMut};

/// Values at stable indices. An index is reused once its value is gone; a handle, the index with the
/// generation of its use, is not, so a stale handle names nothing.
#[derive(Debug, Default)]
pub(super) struct Arena<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Entry<T> {
    /// Odd while the entry is in use.
    generation: u32,
    value: T,
}

impl<T: Default> Arena<T> {
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// # Panics
    /// With 2^32 values; a node needs far more than the 64 GiB that takes.
    pub fn insert(&mut self, value: T) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 entries");
            if self.entries.len() == self.entries.capacity() {
                // A quarter rather than the double: the unused rest is part of what a node costs.
                self.entries.reserve_exact(64 + self.entries.len() / 4);
            }
            self.entries.push(Entry::default());
            index
        });
        let entry = &mut self.entries[index as usize];
        entry.generation += 1;
        entry.value = value;
        index
    }

    /// Take the value out; its handle is stale from here on.
    pub fn remove(&mut self, index: u32) -> T {
        let entry = &mut self.entries[index as usize];
        debug_assert!(entry.generation % 2 == 1, "removed twice");
        entry.generation += 1;
        // An entry whose generations are used up is left alone: its handles would come again. They have 31
        // bits, so that handles have 63.
        if entry.generation < u32::MAX >> 1 {
            self.free.push(index);
        }
        std::mem::take(&mut entry.value)
    }

    /// Remove everything. Handles from before stay stale.
    pub fn clear(&mut self) {
        for index in (0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)).rev() {
            if self.entries[index as usize].generation % 2 == 1 {
                self.remove(index);
            }
        }
    }

    pub fn handle(&self, index: u32) -> u64 {
        u64::from(self.entries[index as usize].generation) << 32 | u64::from(index)
    }

    /// The index a handle names, `None` if it is stale.
    pub fn resolve(&self, handle: u64) -> Option<u32> {
        let index = u32::try_from(handle & u64::from(u32::MAX)).ok()?;
        let entry = self.entries.get(index as usize)?;
        (entry.generation % 2 == 1 && u64::from(entry.generation) == handle >> 32).then_some(index)
    }

    /// Everything in use, by index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.generation % 2 == 1)
            .map(|(index, entry)| (index, &entry.value))
    }
}

impl<T> Index<u32> for Arena<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.entries[index as usize].value
    }
}

impl<T> IndexMut<u32> for Arena<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.entries[index as usize].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_index_has_another_handle() {
        let mut arena = Arena::default();
        let first = arena.insert('a');
        let stale = arena.handle(first);
        assert_eq!(arena.remove(first), 'a');
        let second = arena.insert('b');
        assert_eq!(first, second);
        assert_eq!(arena.resolve(stale), None);
        assert_eq!(arena.resolve(arena.handle(second)), Some(second));
    }

    #[test]
    fn a_guessed_handle_of_a_free_entry_names_nothing() {
        let mut arena = Arena::default();
        let index = arena.insert('a');
        let live = arena.handle(index);
        arena.remove(index);
        for handle in [live, live + (1 << 32), live + (2 << 32), u64::MAX, 7] {
            assert_eq!(arena.resolve(handle), None);
        }
    }

    #[test]
    fn clear_makes_every_handle_stale() {
        let mut arena = Arena::default();
        let handles: Vec<_> = (0..10)
            .map(|value| {
                let index = arena.insert(value);
                arena.handle(index)
            })
            .collect();
        arena.remove(3);
        arena.clear();
        assert_eq!(arena.len(), 0);
        assert!(
            handles
                .iter()
                .all(|&handle| arena.resolve(handle).is_none())
        );
        assert_eq!(arena.insert(1), 0);
    }
}
