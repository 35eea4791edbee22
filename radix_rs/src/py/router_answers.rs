//! What a router answers, as Python sees it.

use pyo3::prelude::*;

use crate::delta;
use crate::index;
use crate::pick::{self, BreakerReading, Explained};

#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Applied {
    outcome: &'static str,
    epoch: u64,
    seq: u64,
    stored: u64,
    removed: u64,
}

impl From<pick::Applied> for Applied {
    fn from(applied: pick::Applied) -> Self {
        Self {
            outcome: applied.outcome.name(),
            epoch: applied.epoch,
            seq: applied.seq,
            stored: applied.stored,
            removed: applied.removed,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Load {
    running: u32,
    waiting: u32,
    pending_tokens: u64,
    free_slots: u64,
    evictable_slots: u64,
    total_slots: u64,
    draining: bool,
}

impl From<delta::Load> for Load {
    fn from(load: delta::Load) -> Self {
        Self {
            running: load.running,
            waiting: load.waiting,
            pending_tokens: load.pending_tokens,
            free_slots: load.free_slots,
            evictable_slots: load.evictable_slots,
            total_slots: load.total_slots,
            draining: load.draining,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Candidate {
    replica: String,
    eligible: bool,
    breaker: &'static str,
    matched: u64,
    expected: u64,
    ahead: f64,
    delayed_requests: f64,
    decode_pressure: f64,
    cost: f64,
}

impl From<Explained> for Candidate {
    fn from(explained: Explained) -> Self {
        let terms = explained.candidate.terms;
        Self {
            replica: explained.replica,
            eligible: explained.eligible,
            breaker: explained.breaker.name(),
            matched: explained.candidate.matched,
            expected: explained.candidate.expected,
            ahead: terms.ahead,
            delayed_requests: terms.delayed_requests,
            decode_pressure: terms.decode_pressure,
            cost: terms.cost,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Breaker {
    state: &'static str,
    openings: u64,
}

impl From<BreakerReading> for Breaker {
    fn from(breaker: BreakerReading) -> Self {
        Self {
            state: breaker.state.name(),
            openings: breaker.openings,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct Pick {
    replica: String,
    matched: u64,
    available: u64,
    reason: &'static str,
    ticket: u64,
}

impl From<pick::Pick> for Pick {
    fn from(pick: pick::Pick) -> Self {
        Self {
            replica: pick.replica,
            matched: pick.matched,
            available: pick.available,
            reason: pick.reason.name(),
            ticket: pick.ticket,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
pub(super) struct MirrorStats {
    epoch: u64,
    seq: u64,
    count: u64,
    digest: u64,
    forgotten: u64,
}

impl From<pick::MirrorStats> for MirrorStats {
    fn from(mirror: pick::MirrorStats) -> Self {
        Self {
            epoch: mirror.epoch,
            seq: mirror.seq,
            count: mirror.count,
            digest: mirror.digest,
            forgotten: mirror.forgotten,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
#[derive(Clone)]
pub(super) struct Branch {
    first: u64,
    blocks: u64,
    replicas: u32,
    detached: bool,
    branches_below: u64,
    blocks_below: u64,
    all_below: bool,
    unused: u32,
}

impl From<index::Branch> for Branch {
    fn from(branch: index::Branch) -> Self {
        Self {
            first: branch.first,
            blocks: branch.blocks,
            replicas: branch.replicas,
            detached: branch.detached,
            branches_below: branch.branches_below,
            blocks_below: branch.blocks_below,
            all_below: branch.all_below,
            unused: branch.unused,
        }
    }
}

#[pyclass(frozen, get_all, module = "radix_rs")]
#[expect(clippy::struct_field_names, reason = "as it reads in Python")]
pub(super) struct Branches {
    branches: Vec<Branch>,
    next: Option<u64>,
    clock: u32,
}

impl From<pick::Branches> for Branches {
    fn from(page: pick::Branches) -> Self {
        Self {
            branches: page.branches.into_iter().map(Branch::from).collect(),
            next: page.next,
            clock: page.clock,
        }
    }
}

#[pyclass(frozen, module = "radix_rs")]
pub(super) struct BlockSet(pub pick::BlockSet);

#[pymethods]
impl BlockSet {
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    #[getter]
    fn seq(&self) -> u64 {
        self.0.seq
    }

    #[getter]
    fn forgotten(&self) -> u64 {
        self.0.forgotten
    }

    #[getter]
    fn count(&self) -> usize {
        self.0.count()
    }

    fn not_in(&self, py: Python<'_>, other: &Self, limit: usize) -> (usize, Vec<u64>) {
        py.detach(|| self.0.not_in(&other.0, limit))
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Applied>()?;
    module.add_class::<Load>()?;
    module.add_class::<Candidate>()?;
    module.add_class::<Breaker>()?;
    module.add_class::<Pick>()?;
    module.add_class::<MirrorStats>()?;
    module.add_class::<Branch>()?;
    module.add_class::<Branches>()?;
    module.add_class::<BlockSet>()
}
