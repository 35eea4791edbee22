//! The data plane: a request comes in by HTTP/2, a replica is picked, its answer passes through.
//!
//! Each shard is a thread with a runtime of its own, which serves the clients it was handed and has its own
//! connection to each replica; shards share the pick and counters. What Python answers, the admin service, health
//! and reflection, goes on to its server, which listens on a socket of this process alone.

mod admission;
mod answer;
mod behind;
mod bodies;
mod burst;
mod call;
mod caller;
mod clock;
mod connection;
mod connections;
mod counters;
mod course;
mod desk;
mod elsewhere;
mod forward;
mod histogram;
mod limits;
mod line;
mod link;
mod listener;
mod memory;
mod message;
mod metadata;
mod open_calls;
mod patience;
mod protobuf;
mod replicas;
mod request;
mod retry_budget;
mod shard;
mod status;
mod strangers;
mod texts;
mod timeout;
mod tls;
mod tokens;
mod trace_context;
mod traces;
mod turns;
mod work;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;

use admission::Admission;
use clock::Clock;
use connections::Connections;
use counters::{Counters, ModelCounters};
use desk::Desk;
use memory::Memory;
use open_calls::OpenCalls;
use replicas::{Replica, Replicas};
use retry_budget::RetryBudget;
use shard::Phase;
use strangers::Strangers;
use texts::{ModelText, Texts};
use tls::Tls;
use tokens::Tokens;
use traces::Traces;
use work::Work;

use crate::pick::{Pick, Router};
use crate::text::TextCodec;

pub use admission::Bounds;
pub use counters::{Buckets, ModelReading};
pub use desk::{Ask, News, Reading};
pub use replicas::{Activity, ReplicaSpec, Totals};
pub use status::{Code, Refusal};
pub use tls::Identity;
pub use traces::{Attribute, Sampling, Span, SpanKind, Traced};

/// What a plane is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Threads.
    pub shards: usize,
    /// How many requests are taken at once.
    pub bounds: Bounds,
    /// Calls of Generate that are open, in flight, waiting, or not read yet; and of all other methods as many.
    pub max_open_calls: usize,
    /// Connections of clients.
    pub max_connections: usize,
    /// Memory for requests that no answer has begun to, all together.
    pub max_held_bytes: usize,
    /// Other replicas tried when one fails before it answers.
    pub retries: usize,
    /// Part of the requests that may be sent to another one.
    pub retry_budget: f64,
    /// How long an answer may wait for its client to read on.
    pub write_stall: Duration,
    /// Socket of the server that answers all but Generate.
    pub behind: PathBuf,
    /// Of the histograms.
    pub buckets: Buckets,
    /// What the clock says that the router's other callers read.
    pub now_s: f64,
    /// Which requests are traced; None: none is, and what is said of traces passes through.
    pub sampling: Option<Sampling>,
    /// Of request ids, spans, and the pauses between retries.
    pub seed: u64,
}

/// What all shards share.
pub(crate) struct Shared {
    settings: Settings,
    router: Arc<Router>,
    replicas: Replicas,
    counters: Counters,
    /// Of requests whose model is not known.
    unnamed: Arc<ModelCounters>,
    admission: Admission,
    retry_budget: RetryBudget,
    /// As in the settings, until they are changed.
    max_open_calls: AtomicUsize,
    retries: AtomicUsize,
    /// Of Generate.
    open_calls: OpenCalls,
    open_calls_behind: OpenCalls,
    connections: Arc<Connections>,
    desk: Desk,
    tls: Tls,
    tokens: Tokens,
    strangers: Strangers,
    texts: Texts,
    work: Arc<Work>,
    memory: Arc<Memory>,
    traces: Traces,
    clock: Clock,
}

impl Shared {
    /// It is passed over until the control plane trusts it again, or says that it is dead.
    fn suspect(&self, replica: &Replica, why: &str) {
        if self.replicas.has(replica.serial) {
            // It may leave at this moment, and then nothing goes there anyway.
            let _ = self.router.doubt(&replica.spec.id);
            self.desk.suspect(&replica.spec.id, replica.serial, why);
        }
    }

    /// The answer to what was picked begins.
    fn answered(&self, pick: &Pick) {
        if self.router.prefilled(pick.ticket) {
            self.desk.breaker(&pick.replica, "closed", "it answered");
        }
    }

    /// What was picked failed, by the replica's fault.
    fn failed(&self, pick: &Pick, why: &str) {
        if self.router.failed(pick.ticket, self.clock.now_s()) {
            self.desk.breaker(&pick.replica, "open", why);
        }
    }
}

/// The data plane of one router.
pub struct Plane {
    shared: Arc<Shared>,
    address: SocketAddr,
    phases: watch::Sender<Phase>,
    listener: Mutex<Option<TcpListener>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Plane {
    /// Holds its port from now on; takes calls from `start` on.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn new(settings: Settings, router: Arc<Router>) -> io::Result<Self> {
        let listener = listener::bind(&settings.host, settings.port)?;
        let address = listener.local_addr()?;
        let counters = Counters::new(settings.buckets.clone());
        let unnamed = counters.model("");
        Ok(Self {
            shared: Arc::new(Shared {
                router,
                replicas: Replicas::default(),
                counters,
                unnamed,
                admission: Admission::new(settings.bounds),
                retry_budget: RetryBudget::new(settings.retry_budget),
                max_open_calls: AtomicUsize::new(settings.max_open_calls),
                retries: AtomicUsize::new(settings.retries),
                open_calls: OpenCalls::default(),
                open_calls_behind: OpenCalls::default(),
                connections: Arc::new(Connections::new(settings.max_connections)),
                desk: Desk::new()?,
                tls: Tls::default(),
                tokens: Tokens::default(),
                strangers: Strangers::default(),
                texts: Texts::default(),
                work: Arc::default(),
                memory: Arc::new(Memory::new(settings.max_held_bytes)),
                traces: Traces::new(settings.sampling),
                clock: Clock::new(settings.now_s),
                settings,
            }),
            address,
            phases: watch::Sender::new(Phase::Serving),
            listener: Mutex::new(Some(listener)),
            threads: Mutex::default(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes calls, on threads of its own. Once.
    ///
    /// # Errors
    /// The system gives no thread or no runtime.
    pub fn start(&self) -> io::Result<()> {
        let listener = self
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(listener) = listener else {
            return Err(io::Error::other("started before"));
        };
        let mut threads = listener::start(&self.shared, &self.phases, listener)?;
        threads.extend(self.shared.work.start()?);
        *self.threads.lock().unwrap_or_else(PoisonError::into_inner) = threads;
        Ok(())
    }

    /// Closes the port and tells clients to go; calls that run go on.
    pub fn drain(&self) {
        self.phases.send_if_modified(|phase| {
            let is_new = *phase == Phase::Serving;
            if is_new {
                *phase = Phase::Draining;
            }
            is_new
        });
    }

    /// Ends all that runs, and the threads.
    pub fn stop(&self) {
        self.phases.send_replace(Phase::Stopped);
        self.shared.work.stop();
        self.listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // One that panicked is over too.
            let _ = thread.join();
        }
    }

    /// From now on clients are served over TLS alone; with `client_ca`, in PEM, only those that have a certificate
    /// of one of these authorities. Before `start`, and again when files changed.
    ///
    /// # Errors
    /// What is given cannot be used, and nothing has changed.
    pub fn set_client_tls(
        &self,
        identity: Identity<'_>,
        client_ca: Option<&[u8]>,
    ) -> Result<(), String> {
        self.shared.tls.set_clients(identity, client_ca)
    }

    /// From now on replicas are dialled over TLS: their certificate must be of one of these authorities, and have the
    /// host of their address as a name, or `name` if it is given. Before `start`, and again when files changed.
    ///
    /// # Errors
    /// What is given cannot be used, and nothing has changed.
    pub fn set_replica_tls(
        &self,
        ca: &[u8],
        identity: Option<Identity<'_>>,
        name: Option<&str>,
    ) -> Result<(), String> {
        self.shared.tls.set_replicas(ca, identity, name)
    }

    /// From now on all calls but health checks need one of these bearer tokens.
    pub fn set_caller_tokens(&self, tokens: &[Vec<u8>]) {
        self.shared.tokens.set_callers(tokens);
    }

    /// From now on calls of the admin service need one of these bearer tokens, which open the rest too.
    pub fn set_admin_tokens(&self, tokens: &[Vec<u8>]) {
        self.shared.tokens.set_admins(tokens);
    }

    /// Clients that were not let in: why, how often, and the address of the last.
    pub fn turned_away(&self) -> Vec<(&'static str, u64, String)> {
        self.shared.strangers.read()
    }

    /// A replica joins, or takes the place of one of its id; what it is called in `News`. To be made eligible
    /// afterwards.
    ///
    /// # Errors
    /// The address is none.
    pub fn add_replica(&self, spec: ReplicaSpec) -> Result<u64, String> {
        let shared = &self.shared;
        let scheme = shared.tls.replicas().map_or("http", |_| "https");
        shared.replicas.add(spec, scheme, &shared.counters)
    }

    /// A replica leaves, and its calls end.
    pub fn remove_replica(&self, id: &str, why: &str) {
        self.shared.replicas.remove(id, why);
    }

    /// Texts and chats for a model are made tokens by this tokenizer from now on, whose digest replicas know; while
    /// there is none they are asked for.
    pub fn set_text(&self, model: &str, text: Option<(Vec<u8>, Arc<TextCodec>)>) {
        let text = text.map(|(digest, codec)| ModelText { digest, codec });
        self.shared.texts.set(model, text);
    }

    /// Ends a replica's calls, or only those it has not begun to answer: these go elsewhere.
    pub fn end_calls(&self, id: &str, why: &str, only_unanswered: bool) {
        if only_unanswered {
            self.shared.replicas.end_unanswered(id, why);
        } else {
            self.shared.replicas.end_all(id, why);
        }
    }

    /// What a replica does; nothing if it is not there.
    pub fn activity(&self, id: &str) -> Activity {
        self.shared.replicas.activity(id)
    }

    /// What a replica has done; nothing if it is not there.
    pub fn totals(&self, id: &str) -> Totals {
        self.shared.replicas.totals(id)
    }

    /// Takes other bounds, which hold for what comes from now on; who waits goes on if there is room.
    pub fn set_bounds(
        &self,
        bounds: Bounds,
        max_open_calls: usize,
        retries: usize,
        retry_budget: f64,
    ) {
        self.shared.max_open_calls.store(max_open_calls, Relaxed);
        self.shared.retries.store(retries, Relaxed);
        self.shared.retry_budget.set_share(retry_budget);
        self.shared.admission.set_bounds(bounds);
    }

    /// One more request is in flight, until `leave`; false if there are as many as may be.
    pub fn enter(&self) -> bool {
        self.shared.admission.enter()
    }

    /// It is over.
    pub fn leave(&self) {
        self.shared.admission.leave();
    }

    /// Requests in flight.
    pub fn inflight(&self) -> usize {
        self.shared.admission.inflight()
    }

    /// Bytes of memory that requests hold to which no answer has begun.
    pub fn held_bytes(&self) -> usize {
        self.shared.memory.held_bytes()
    }

    /// Requests that wait until fewer are in flight.
    pub fn queued(&self) -> usize {
        self.shared.admission.queued()
    }

    /// Requests ever taken.
    pub fn taken(&self) -> u64 {
        self.shared.admission.taken()
    }

    /// Connections of clients.
    pub fn connections(&self) -> usize {
        self.shared.connections.open()
    }

    /// Readable when there is news to take.
    pub fn news_fd(&self) -> RawFd {
        self.shared.desk.fd()
    }

    /// What has happened since the last call.
    pub fn take_news(&self) -> News {
        self.shared.desk.take()
    }

    /// Answers an [`Ask`].
    pub fn answer(&self, ask: u64, answer: Result<Reading, Refusal>) {
        self.shared.desk.answer(ask, answer);
    }

    /// Traced requests that are over, `most` at most; what nobody takes is dropped in the end.
    pub fn take_traces(&self, most: usize) -> Vec<Traced> {
        self.shared.traces.take(most)
    }

    /// Traced requests that nobody took in time.
    pub fn dropped_traces(&self) -> u64 {
        self.shared.traces.dropped()
    }

    /// Picks by the name of their reason.
    pub fn picks(&self) -> Vec<(&'static str, u64)> {
        self.shared.counters.picks()
    }

    /// Requests sent to another replica because one failed before it answered.
    pub fn retries(&self) -> u64 {
        self.shared.counters.retries.load(Relaxed)
    }

    /// What was counted of each model.
    pub fn models(&self) -> Vec<ModelReading> {
        self.shared.counters.models()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A thread of the plane.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new()
        .name(format!("plane-{name}"))
        .spawn(run)
}
