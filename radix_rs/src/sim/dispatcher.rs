//! Who says where a request goes.

use std::rc::Rc;

use super::agenda::{Agenda, Event};
use super::replica::Replica;
use super::trace::Trace;

/// Decides, and hears what a router hears. A rule that looks at the replicas themselves need not listen.
pub trait Dispatcher {
    /// Ends the simulation.
    type Error;

    /// The number of the replica that gets a request.
    ///
    /// # Errors
    /// There is none.
    fn pick(
        &mut self,
        now_s: f64,
        request: usize,
        trace: &Trace,
        replicas: &[Replica],
    ) -> Result<usize, Self::Error>;

    /// The first token of an answer came.
    ///
    /// # Errors
    /// Something that ends the simulation.
    fn first_token(&mut self, _request: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// An answer is complete.
    ///
    /// # Errors
    /// Something that ends the simulation.
    fn ended(&mut self, _request: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether replicas publish.
    fn listens(&self) -> bool {
        false
    }

    /// A replica has sent a batch.
    fn published(&mut self, _now_s: f64, _replica: usize, _batch: &Rc<[u8]>, _agenda: &mut Agenda) {
    }

    /// An event that this dispatcher has entered.
    ///
    /// # Errors
    /// Something that ends the simulation.
    fn happens(
        &mut self,
        _now_s: f64,
        _event: Event,
        _trace: &Trace,
        _replicas: &mut [Replica],
        _agenda: &mut Agenda,
    ) -> Result<(), Self::Error> {
        Ok(())
    }
}
