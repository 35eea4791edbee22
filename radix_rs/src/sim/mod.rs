//! A fleet that is not there: replicas and their clients as a model driven by a trace, on the real index and the
//! real pick.
//!
//! What a replica of the model does follows from the trace and the clock alone. It takes the prompt with the least
//! left to compute first, chunk by chunk, or the first to come; it keeps blocks until others push them out, the
//! least recently used first; and it tells of all that in the batches a real replica sends. The routers get these
//! batches late, or not at all, and know nothing else.
//!
//! [`Dispatcher`] is what decides: [`Routers`] are ours, and a benchmark can put another rule in their place.

mod agenda;
mod cache;
mod delta_log;
mod dispatcher;
mod replica;
mod routers;
mod run;
#[cfg(test)]
mod tests;
mod trace;

pub use agenda::{Agenda, Event};
pub use dispatcher::Dispatcher;
pub use replica::{Engine, Replica};
pub use routers::{Delivery, Routers};
pub use run::{Outcome, run};
pub use trace::{Before, Request, Trace, TraceError};
