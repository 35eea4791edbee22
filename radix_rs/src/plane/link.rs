//! One connection of one shard to a peer: opened when it is needed, shared by all calls, opened anew when it broke.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::limits::CONNECT_TIMEOUT;

/// By which calls are sent, and whether the connection still stands.
pub(crate) struct Open {
    pub sender: SendRequest<Bytes>,
    pub stands: Rc<Cell<bool>>,
}

#[derive(Default)]
pub(crate) struct Link {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    failure: Option<(Instant, String)>,
}

impl Link {
    /// The next call dials anew: this connection takes no more calls, even if it serves those it has.
    pub fn distrust(&self) {
        if let Ok(state) = self.state.try_lock()
            && let Some(open) = &state.open
        {
            open.stands.set(false);
        }
    }

    /// For one call. Many that wait for a connection share its fate: one dials, and all fail with it.
    pub async fn sender<F>(&self, dial: impl FnOnce() -> F) -> Result<SendRequest<Bytes>, String>
    where
        F: Future<Output = Result<Open, String>>,
    {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(open) = &state.open
            && open.stands.get()
        {
            return Ok(open.sender.clone());
        }
        if let Some((failed, why)) = &state.failure
            && *failed >= asked
        {
            return Err(why.clone());
        }
        state.open = None;
        let dialled = timeout(CONNECT_TIMEOUT, dial()).await.unwrap_or_else(|_| {
            let seconds = CONNECT_TIMEOUT.as_secs();
            Err(format!("no connection within {seconds} s"))
        });
        match dialled {
            Ok(open) => {
                let sender = open.sender.clone();
                state.open = Some(open);
                state.failure = None;
                Ok(sender)
            }
            Err(why) => {
                state.failure = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }
}
