//! From a batch's bytes to the index, the load and the prompts in flight.

use prost::Message;

use super::core::Core;
use super::fleet::Replica;
use super::in_flight::InFlight;
use super::load::LoadReport;
use crate::chain::{HASH_VERSION, NO_PARENT};
use crate::delta::{DeltaBatch, DeltaEvent, Event, Expected, Stored};
use crate::error::RouterError;
use crate::index::{Outcome, ReplicaId, Tally};

/// What a batch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// What became of it.
    pub outcome: Outcome,
    /// Of the batch.
    pub epoch: u64,
    /// Of the batch.
    pub seq: u64,
    /// Blocks the mirror did not hold before.
    pub stored: u64,
    /// Blocks the mirror no longer holds.
    pub removed: u64,
}

/// Reads a batch and checks all that can be checked without a mirror.
pub(crate) fn decode(replica: &str, bytes: &[u8]) -> Result<DeltaBatch, RouterError> {
    let batch = DeltaBatch::decode(bytes).map_err(|error| malformed(replica, error.to_string()))?;
    if batch.epoch == 0 {
        return Err(malformed(replica, "epoch 0".to_owned()));
    }
    let names_nothing = |event: &DeltaEvent| match &event.event {
        Some(Event::Stored(Stored { hashes, .. }) | Event::Expected(Expected { hashes, .. })) => {
            hashes.contains(&NO_PARENT)
        }
        _ => false,
    };
    if batch.events.iter().any(names_nothing) {
        return Err(malformed(replica, "a block has hash 0".to_owned()));
    }
    Ok(batch)
}

fn malformed(replica: &str, why: String) -> RouterError {
    RouterError::Malformed {
        replica: replica.to_owned(),
        why,
    }
}

/// Whether the batch names blocks as the mirror does, and its load, if it carries one.
fn check(replica: &Replica, batch: &mut DeltaBatch) -> Result<Option<LoadReport>, RouterError> {
    if batch.hash_version != HASH_VERSION {
        return Err(RouterError::HashVersion {
            replica: replica.name.clone(),
            expected: HASH_VERSION,
            found: batch.hash_version,
        });
    }
    if batch.block_size != replica.block_size {
        return Err(RouterError::BatchBlockSize {
            replica: replica.name.clone(),
            expected: replica.block_size,
            found: batch.block_size,
        });
    }
    let load = batch.load.take();
    load.map(LoadReport::read)
        .transpose()
        .map_err(|why| malformed(&replica.name, why))
}

fn take_load(
    id: ReplicaId,
    replica: &mut Replica,
    report: Option<LoadReport>,
    in_flight: &mut InFlight,
) {
    if let Some(report) = report {
        replica.report = report;
        in_flight.load_reported(id);
    }
}

/// Blocks stored in a step, a microsecond or so, or as much as so many.
const STEP: usize = 16;

/// What an event costs besides its blocks.
const EVENT: usize = 8;

/// A batch on its way into the index.
pub(crate) struct Applying {
    id: ReplicaId,
    batch: DeltaBatch,
    /// The event that comes next, and how much of it is done.
    event: usize,
    done: usize,
    /// Blocks came that may complete prompts in flight.
    is_news: bool,
    /// Count and digest say what the tree holds.
    proves: bool,
    pub applied: Applied,
}

impl Applying {
    fn new(id: ReplicaId, batch: DeltaBatch, outcome: Outcome, proves: bool) -> Self {
        let applied = Applied {
            outcome,
            epoch: batch.epoch,
            seq: batch.seq,
            stored: 0,
            removed: 0,
        };
        Self {
            id,
            // One that is not applied has nothing to do.
            event: match outcome {
                Outcome::Applied => 0,
                _ => batch.events.len(),
            },
            batch,
            done: 0,
            is_news: false,
            proves: proves && outcome == Outcome::Applied,
            applied,
        }
    }
}

impl Core {
    /// Takes a batch that continues the mirror, to be applied in steps.
    ///
    /// Loads are taken in the order in which they come, so that none can stick by claiming to be far ahead. A
    /// mirror that waits for a snapshot takes all but those seen before; another one none of another life.
    pub fn begin(&mut self, name: &str, mut batch: DeltaBatch) -> Result<Applying, RouterError> {
        let (id, replica) = self.fleet.find_mut(name)?;
        let report = check(replica, &mut batch)?;
        if batch.seq == 0 {
            return Err(malformed(name, "seq 0".to_owned()));
        }
        let outcome = replica.position.judge(batch.epoch, batch.seq);
        let waits = replica.position.epoch == 0;
        if outcome == Outcome::Applied {
            replica.position.seq = batch.seq;
        }
        if outcome != Outcome::Stale && (outcome != Outcome::Epoch || waits) {
            take_load(id, replica, report, &mut self.in_flight);
        }
        Ok(Applying::new(id, batch, outcome, true))
    }

    /// Takes a chunk of a snapshot to a cleared mirror, to be added in steps; the last one ends it.
    pub fn begin_snapshot(
        &mut self,
        name: &str,
        mut batch: DeltaBatch,
        last: bool,
    ) -> Result<Applying, RouterError> {
        let (id, replica) = self.fleet.find_mut(name)?;
        let report = check(replica, &mut batch)?;
        let position = &mut replica.position;
        if position.epoch != 0 {
            return Err(RouterError::NotCleared {
                replica: name.to_owned(),
                epoch: position.epoch,
                seq: position.seq,
            });
        }
        let found = (batch.epoch, batch.seq);
        let expected = *position.snapshot.get_or_insert(found);
        if expected != found {
            return Err(RouterError::SnapshotChanged {
                replica: name.to_owned(),
                expected,
                found,
            });
        }
        if last {
            position.snapshot = None;
            (position.epoch, position.seq) = found;
            // Even if it says nothing of load: what a batch before it claimed is over.
            let report = report.unwrap_or_default();
            take_load(id, replica, Some(report), &mut self.in_flight);
        }
        Ok(Applying::new(id, batch, Outcome::Applied, last))
    }

    /// Does the next step of a batch: whether there is more to do.
    pub fn step(&mut self, work: &mut Applying) -> bool {
        let mut room = STEP;
        while room > 0 {
            let Some(event) = work.batch.events.get_mut(work.event) else {
                self.finish(work);
                return false;
            };
            let event = &mut event.event;
            if work.is_news && matches!(event, Some(Event::Removed(_) | Event::Cleared(_))) {
                // Whose blocks are complete is done, even if they go at once.
                self.in_flight.blocks_stored(work.id, &self.index);
                work.is_news = false;
            }
            let (id, mut goes_on, mut cost) = (work.id, false, EVENT);
            match event {
                Some(Event::Stored(run)) => {
                    let (before, left) = run.hashes.split_at(work.done);
                    let parent = before.last().copied().unwrap_or(run.parent);
                    if self.index.seek_parent(id, parent) {
                        return true;
                    }
                    let hashes = &left[..left.len().min(room)];
                    let (stored, done) = self.index.store_step(id, parent, hashes);
                    if stored > 0 && self.index.forgotten(id).count > 0 {
                        // They may be forgotten already: nobody would find them in the index.
                        self.in_flight.run_stored(id, &hashes[..done]);
                    }
                    work.applied.stored += stored;
                    work.is_news |= stored > 0;
                    work.done += done;
                    goes_on = done < left.len();
                    // It goes on in another run, or after a cut: in another step.
                    cost = if goes_on { STEP } else { cost + done };
                }
                Some(Event::Removed(range)) => {
                    let (held, more) = self.index.remove_step(id, range);
                    work.applied.removed += held;
                    goes_on = more;
                    cost = STEP;
                }
                Some(Event::Cleared(_)) => {
                    let (held, more) = self.index.clear_step(id, &mut work.done);
                    work.applied.removed += held;
                    goes_on = more;
                    cost = STEP;
                }
                Some(Event::Expected(expected)) => {
                    let block_tokens = u64::from(work.batch.block_size);
                    self.in_flight
                        .expect(id, expected, block_tokens, &self.index);
                }
                Some(Event::Dropped(dropped)) => self.in_flight.dropped(id, dropped.id),
                // A kind of event this version does not know: count and digest say whether it mattered.
                None => {}
            }
            if !goes_on {
                work.event += 1;
                work.done = 0;
            }
            room = room.saturating_sub(cost);
        }
        true
    }

    fn finish(&mut self, work: &mut Applying) {
        if work.is_news {
            self.in_flight.blocks_stored(work.id, &self.index);
        }
        let claimed = Tally {
            count: work.batch.count,
            digest: work.batch.digest,
        };
        if work.proves && self.index.tally(work.id) != claimed {
            work.applied.outcome = Outcome::Mismatch;
        }
    }
}
