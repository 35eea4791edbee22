//! One thread of the data plane, with its own clients and its own connections to replicas.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::HeaderMap;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::spawn_local;

use super::Shared;
use super::limits::{
    ANSWER_WINDOW_BYTES, ANSWERS_WINDOW_BYTES, KEEPALIVE, KEEPALIVE_TIMEOUT, MAX_HEADER_LIST_BYTES,
    RESET_KEPT, RESETS_KEPT,
};
use super::line::{Gathered, Line};
use super::link::{Link, Open};
use super::replicas::{Life, Replica};
use super::traces::Trace;
use super::turns::Turns;
use crate::pick::Random;

/// Where the plane's life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Calls are taken.
    Serving,
    /// No connection is taken and no call begins; those that run go on.
    Draining,
    /// All ends at once.
    Stopped,
}

pub(crate) struct Shard {
    pub plane: Arc<Shared>,
    pub phases: watch::Receiver<Phase>,
    /// By serial.
    links: RefCell<HashMap<u64, Rc<Link>>>,
    behind: Link,
    random: RefCell<Random>,
    pub turns: Rc<Turns>,
}

impl Shard {
    pub fn new(plane: Arc<Shared>, phases: watch::Receiver<Phase>, seed: u64) -> Self {
        Self {
            plane,
            phases,
            links: RefCell::default(),
            behind: Link::default(),
            random: RefCell::new(Random::new(seed)),
            turns: Rc::new(Turns::new()),
        }
    }

    /// An id for a request that has none: 32 hexadecimal digits.
    pub fn request_id(&self) -> String {
        let mut random = self.random.borrow_mut();
        format!("{:016x}{:016x}", random.next(), random.next())
    }

    /// Of a request that begins, with these headers.
    pub fn trace(&self, headers: &HeaderMap) -> Trace {
        let next = || self.random.borrow_mut().next();
        self.plane.traces.begin(headers, next)
    }

    /// Between 0 and 1.
    pub fn uniform(&self) -> f64 {
        self.random.borrow_mut().share()
    }

    /// The link to a replica; links to those that left are dropped on the way.
    pub fn link(&self, replica: &Replica) -> Rc<Link> {
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.get(&replica.serial) {
            return link.clone();
        }
        links.retain(|serial, _| self.plane.replicas.has(*serial));
        let link = Rc::new(Link::default());
        links.insert(replica.serial, link.clone());
        link
    }

    /// By which a call is sent to a replica.
    pub async fn sender(
        &self,
        link: &Link,
        replica: &Arc<Replica>,
    ) -> Result<SendRequest<Bytes>, String> {
        link.sender(async || {
            let life = replica.life();
            let address = &replica.spec.address;
            let socket = TcpStream::connect(address).await;
            let socket = socket.map_err(|error| format!("cannot connect: {error}"))?;
            let _ = socket.set_nodelay(true);
            end_if_silent(&socket).map_err(|error| format!("cannot watch: {error}"))?;
            let replica = Some((replica.clone(), life));
            match self.plane.tls.replicas() {
                None => open(self.line(socket), replica).await,
                Some(tls) => open(self.line(tls.connect(address, socket).await?), replica).await,
            }
        })
        .await
    }

    /// A socket of this shard.
    pub fn line<T>(&self, socket: T) -> (Line<T>, Gathered<T>) {
        Line::new(socket, self.turns.clone())
    }

    /// The connection to the control plane takes no more calls.
    pub fn distrust_behind(&self) {
        self.behind.distrust();
    }

    /// By which a call is sent to the control plane.
    pub async fn sender_behind(&self) -> Result<SendRequest<Bytes>, String> {
        self.behind
            .sender(async || {
                let socket = UnixStream::connect(&self.plane.settings.behind).await;
                let socket = socket.map_err(|error| format!("the router is not ready: {error}"))?;
                open(self.line(socket), None).await
            })
            .await
    }
}

/// A connection whose peer acknowledges nothing ends, though nothing is sent on it.
fn end_if_silent(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let probes = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE_TIMEOUT)
        .with_retries(1);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(KEEPALIVE + KEEPALIVE_TIMEOUT))?;
    Ok(())
}

/// Speaks HTTP/2 on a line, in a task of its own. A connection to a replica stands until the replica's calls are
/// ended, even if they are those without an answer only: what has fallen silent is dialled anew.
async fn open<T>(
    (line, gathered): (Line<T>, Gathered<T>),
    replica: Option<(Arc<Replica>, Life)>,
) -> Result<Open, String>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .initial_window_size(ANSWER_WINDOW_BYTES)
        .initial_connection_window_size(ANSWERS_WINDOW_BYTES)
        // A replica goes on sending for a moment what was given up here; that is no fault of it.
        .max_concurrent_reset_streams(RESETS_KEPT)
        .reset_stream_duration(RESET_KEPT)
        .max_local_error_reset_streams(None)
        // Tokens are small, and what one stream may leave unread is bounded by its window.
        .data_frame_budget(usize::MAX);
    let shaken = builder.handshake::<_, Bytes>(line).await;
    let (sender, connection) = shaken.map_err(|error| error.to_string())?;
    let stands = Rc::new(Cell::new(true));
    let standing = stands.clone();
    spawn_local(async move {
        let mut connection = pin!(connection);
        let mut driven = pin!(poll_fn(move |cx| {
            let over = connection.as_mut().poll(cx);
            let _ = gathered.poll_give(cx); // a socket that broke says so when it is read
            over.map(drop)
        }));
        if let Some((replica, began_in)) = replica {
            let (mut all, mut unanswered) = (pin!(replica.ending()), pin!(replica.ending()));
            poll_fn(|cx| {
                let told = replica.poll_ended(cx, began_in, false, unanswered.as_mut());
                if told.is_ready() {
                    standing.set(false);
                }
                if replica
                    .poll_ended(cx, began_in, true, all.as_mut())
                    .is_ready()
                {
                    return Poll::Ready(());
                }
                driven.as_mut().poll(cx)
            })
            .await;
        } else {
            driven.await;
        }
        standing.set(false);
    });
    Ok(Open { sender, stands })
}
