//! Where the copy of one replica's tree stands in its stream of batches.

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Applied, and count and digest agree.
    Applied,
    /// Seen before; ignored.
    Stale,
    /// Batches before it are missing; not applied.
    Gap,
    /// It belongs to another life of the tree; not applied.
    Epoch,
    /// Applied, but count or digest disagree: the mirror is not the tree.
    Mismatch,
}

impl Outcome {
    /// Its name in the Python face.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Stale => "stale",
            Self::Gap => "gap",
            Self::Epoch => "epoch",
            Self::Mismatch => "mismatch",
        }
    }
}

/// Epoch 0 is no epoch: the mirror knows nothing, or a snapshot is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The life of the tree it mirrors.
    pub epoch: u64,
    /// The last batch it holds.
    pub seq: u64,
    /// Epoch and seq of the snapshot whose chunks are coming in.
    pub snapshot: Option<(u64, u64)>,
}

impl Position {
    /// What a batch is to a mirror that stands here: `Applied` if it is the next one.
    pub fn judge(&self, epoch: u64, seq: u64) -> Outcome {
        if epoch != self.epoch {
            Outcome::Epoch
        } else if seq <= self.seq {
            Outcome::Stale
        } else if seq - self.seq > 1 {
            Outcome::Gap
        } else {
            Outcome::Applied
        }
    }
}
