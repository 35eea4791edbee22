//! What a replica says it has to do, by size of the prompts.

use crate::delta::{Load, PrefillOrder};

/// Classes of remaining tokens by power of two: class i is `[2^i, 2^(i+1))`.
pub(crate) const CLASSES: usize = 32;

/// The class of a prompt with `tokens` left.
pub(crate) fn class_of(tokens: u64) -> usize {
    (tokens.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// Prompts of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    pub requests: u64,
    pub tokens: u64,
}

/// The load of the batch that came last, of those that are taken: see `Core::apply`.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadReport {
    /// As it came.
    pub load: Load,
    /// Those of its classes that have prompts, by number.
    pub classes: Vec<(usize, Class)>,
    /// Prompts in them.
    pub requests: u64,
}

impl LoadReport {
    /// Reads a load; the error says what is wrong with it.
    pub fn read(load: Load) -> Result<Self, String> {
        let mut classes = [Class::default(); CLASSES];
        for class in &load.classes {
            let slot = classes.get_mut(class.log2 as usize).ok_or_else(|| {
                let log2 = class.log2;
                format!("load class {log2}, expected 0 to {}", CLASSES - 1)
            })?;
            slot.requests += u64::from(class.requests);
            slot.tokens = slot.tokens.saturating_add(class.tokens);
        }
        if load.classes.is_empty() && (load.waiting > 0 || load.pending_tokens > 0) {
            // Only the sum is said: as if all were of the mean size, and one that none waits behind is under way.
            let requests = u64::from(load.waiting).max(1);
            classes[class_of(load.pending_tokens / requests)] = Class {
                requests,
                tokens: load.pending_tokens,
            };
        }
        let classes = classes.into_iter().enumerate();
        let classes: Vec<_> = classes.filter(|(_, class)| class.requests > 0).collect();
        let requests = classes.iter().map(|(_, class)| class.requests).sum();
        Ok(Self {
            load,
            classes,
            requests,
        })
    }

    /// Whether the least remaining prefill goes first. An engine that does not say is taken to serve
    /// first come, first served, as most do.
    pub fn shortest_first(&self) -> bool {
        self.load.order == PrefillOrder::Shortest as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(waiting: u32, pending_tokens: u64) -> Vec<(usize, Class)> {
        let load = Load {
            waiting,
            pending_tokens,
            ..Load::default()
        };
        LoadReport::read(load).unwrap().classes
    }

    #[test]
    fn a_sum_alone_is_of_prompts_of_the_mean_size() {
        let class = |requests, tokens| Class { requests, tokens };
        assert_eq!(read(4, 400), [(6, class(4, 400))]);
        assert_eq!(read(0, 10_000), [(13, class(1, 10_000))]);
        assert_eq!(read(0, 0), []);
    }
}
