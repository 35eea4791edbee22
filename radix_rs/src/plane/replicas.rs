//! Replicas as the plane sees them: where they are, what runs there, what they did, and when that is to end.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Poll};

use http::Uri;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::answer::Usage;
use super::counters::{Counters, ModelCounters};
use crate::pick::Pick;

/// Where a replica serves answers.
pub(crate) const GENERATE: &str = "/prefixlb.v1.Inference/Generate";

/// What a replica is when it joins.
#[derive(Clone, Debug)]
pub struct ReplicaSpec {
    /// Its name.
    pub id: String,
    /// host:port.
    pub address: String,
    /// The model it serves.
    pub model: String,
    /// Tokens of a page.
    pub page_size: u32,
    /// Of its tokenizer; empty if it has none.
    pub tokenizer_digest: Vec<u8>,
}

/// Tokens of the requests a replica has completed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// How many requests.
    pub requests: u64,
    /// Of their prompts.
    pub prompt: u64,
    /// That the replica with the best match had cached, by the mirrors.
    pub available: u64,
    /// That the picked one had cached, by its mirror.
    pub captured: u64,
    /// That it really reused.
    pub delivered: u64,
}

/// How often calls were ended from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    all: u64,
    unanswered: u64,
}

/// One replica from its joining to its leaving.
#[derive(Debug)]
pub(crate) struct Replica {
    pub spec: ReplicaSpec,
    /// No other replica of this process has or had it.
    pub serial: u64,
    pub uri: Uri,
    totals: Mutex<Totals>,
    calls: AtomicU32,
    unanswered: AtomicU32,
    /// Bits of a float.
    heard_s: AtomicU64,
    all_ended: AtomicU64,
    unanswered_ended: AtomicU64,
    ended_because: Mutex<String>,
    ending: Notify,
}

impl Replica {
    /// Of `matched` tokens those it can really reuse: the prompt's last it always computes.
    pub fn reusable(&self, matched: u64, prompt_tokens: u64) -> u64 {
        let page = u64::from(self.spec.page_size.max(1));
        matched.min(prompt_tokens.saturating_sub(1) / page * page)
    }

    /// A request of `pick` is complete.
    pub fn completed(&self, usage: Usage, pick: &Pick) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.requests += 1;
        totals.prompt += usage.prompt_tokens;
        totals.available += self.reusable(pick.available, usage.prompt_tokens);
        totals.captured += self.reusable(pick.matched, usage.prompt_tokens);
        totals.delivered += usage.cached_tokens;
    }

    pub fn heard(&self, now_s: f64) {
        self.heard_s.store(now_s.to_bits(), SeqCst);
    }

    /// When the last of any answer came; negative infinity: never.
    pub fn heard_s(&self) -> f64 {
        f64::from_bits(self.heard_s.load(SeqCst))
    }

    pub fn life(&self) -> Life {
        Life {
            all: self.all_ended.load(SeqCst),
            unanswered: self.unanswered_ended.load(SeqCst),
        }
    }

    /// To be polled by `poll_ended`.
    pub fn ending(&self) -> Notified<'_> {
        self.ending.notified()
    }

    /// Ready with the reason once a call that began in `life` is to end.
    pub fn poll_ended<'a>(
        &'a self,
        cx: &mut Context<'_>,
        life: Life,
        answered: bool,
        mut ending: Pin<&mut Notified<'a>>,
    ) -> Poll<String> {
        loop {
            let told = ending.as_mut().poll(cx);
            let now = self.life();
            if now.all != life.all || (!answered && now.unanswered != life.unanswered) {
                let why = self.ended_because.lock();
                return Poll::Ready(why.unwrap_or_else(PoisonError::into_inner).clone());
            }
            if told.is_pending() {
                return Poll::Pending;
            }
            ending.set(self.ending());
        }
    }

    fn end(&self, lives: &AtomicU64, why: &str) {
        let mut because = self.ended_because.lock();
        let because = because
            .as_mut()
            .map_or_else(|error| &mut **error.get_mut(), |b| &mut **b);
        why.clone_into(because);
        lives.fetch_add(1, SeqCst);
        self.ending.notify_waiters();
    }
}

/// A call at a replica, until it is dropped.
pub(crate) struct Running<'a> {
    replica: &'a Replica,
    pub answered: bool,
}

impl<'a> Running<'a> {
    pub fn new(replica: &'a Replica) -> Self {
        replica.calls.fetch_add(1, SeqCst);
        replica.unanswered.fetch_add(1, SeqCst);
        Self {
            replica,
            answered: false,
        }
    }

    /// The first of its answer came.
    pub fn answered(&mut self) {
        self.answered = true;
        self.replica.unanswered.fetch_sub(1, SeqCst);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.replica.calls.fetch_sub(1, SeqCst);
        if !self.answered {
            self.replica.unanswered.fetch_sub(1, SeqCst);
        }
    }
}

/// A model that is served.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub name: Arc<str>,
    pub counters: Arc<ModelCounters>,
}

impl Activity {
    const NONE: Self = Self {
        calls: 0,
        unanswered: 0,
        heard_s: f64::NEG_INFINITY,
    };
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<String, Arc<Replica>>,
    models: HashMap<Arc<str>, (Model, usize)>,
    serials: u64,
}

/// What a replica does now, as the rest of the process asks.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    /// Requests there, answered or not.
    pub calls: u32,
    /// Those whose answer has not begun.
    pub unanswered: u32,
    /// When the last of any answer came; negative infinity: never.
    pub heard_s: f64,
}

/// Who is there.
#[derive(Debug, Default)]
pub(crate) struct Replicas(RwLock<Table>);

impl Replicas {
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of one of its id; returns its serial. `scheme`: of its calls, http or https.
    pub fn add(&self, spec: ReplicaSpec, scheme: &str, counters: &Counters) -> Result<u64, String> {
        let uri = format!("{scheme}://{}{GENERATE}", spec.address);
        let uri = uri
            .parse()
            .map_err(|error| format!("address {:?} is none: {error}", spec.address))?;
        let counters = counters.model(&spec.model);
        self.remove(&spec.id, "another one took its place");
        let mut table = self.write();
        table.serials += 1;
        let serial = table.serials;
        let name: Arc<str> = Arc::from(spec.model.as_str());
        let model = Model {
            name: name.clone(),
            counters,
        };
        table.models.entry(name).or_insert((model, 0)).1 += 1;
        let replica = Replica {
            serial,
            uri,
            totals: Mutex::default(),
            calls: AtomicU32::new(0),
            unanswered: AtomicU32::new(0),
            heard_s: AtomicU64::new(f64::NEG_INFINITY.to_bits()),
            all_ended: AtomicU64::new(0),
            unanswered_ended: AtomicU64::new(0),
            ended_because: Mutex::default(),
            ending: Notify::new(),
            spec,
        };
        table
            .by_id
            .insert(replica.spec.id.clone(), Arc::new(replica));
        Ok(serial)
    }

    /// Its calls end.
    pub fn remove(&self, id: &str, why: &str) {
        let mut table = self.write();
        let Some(replica) = table.by_id.remove(id) else {
            return;
        };
        if let Some((_, replicas)) = table.models.get_mut(replica.spec.model.as_str()) {
            *replicas -= 1;
            if *replicas == 0 {
                table.models.remove(replica.spec.model.as_str());
            }
        }
        drop(table);
        replica.end(&replica.all_ended, why);
    }

    pub fn get(&self, id: &str) -> Option<Arc<Replica>> {
        self.read().by_id.get(id).cloned()
    }

    pub fn has(&self, serial: u64) -> bool {
        let table = self.read();
        table.by_id.values().any(|replica| replica.serial == serial)
    }

    /// The model a request means: of its name, or the only one. None is for others to explain.
    pub fn model(&self, asked: &str) -> Option<Model> {
        let table = self.read();
        let found = if asked.is_empty() && table.models.len() == 1 {
            table.models.values().next()
        } else {
            table.models.get(asked)
        };
        found.map(|(model, _)| model.clone())
    }

    pub fn end_all(&self, id: &str, why: &str) {
        if let Some(replica) = self.get(id) {
            replica.end(&replica.all_ended, why);
        }
    }

    pub fn end_unanswered(&self, id: &str, why: &str) {
        if let Some(replica) = self.get(id) {
            replica.end(&replica.unanswered_ended, why);
        }
    }

    /// Nothing, of one that is not there.
    pub fn activity(&self, id: &str) -> Activity {
        self.get(id).map_or(Activity::NONE, |replica| Activity {
            calls: replica.calls.load(SeqCst),
            unanswered: replica.unanswered.load(SeqCst),
            heard_s: replica.heard_s(),
        })
    }

    /// Nothing, of one that is not there.
    pub fn totals(&self, id: &str) -> Totals {
        self.get(id).map_or_else(Totals::default, |replica| {
            *replica
                .totals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        })
    }
}
