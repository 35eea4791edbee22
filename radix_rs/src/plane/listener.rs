//! The port, and the threads that serve who comes by it.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

use super::connections::{Connections, Seated};
use super::shard::{Phase, Shard};
use super::{Shared, connection, spawn};

const BACKLOG: i32 = 1024;

/// After an accept that failed: without a file descriptor left it would at once fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A socket that listens. No other one may share its port: a second router there would be a mistake.
pub(super) fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut failure = io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Every shard on its thread; the first one accepts and hands on in turn.
pub(super) fn start(
    shared: &Arc<Shared>,
    phases: &watch::Sender<Phase>,
    listener: TcpListener,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut listener = Some(listener);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..shared.settings.shards.max(1))
        .map(|_| mpsc::unbounded_channel())
        .unzip();
    let mut threads = Vec::new();
    for (number, clients) in receivers.into_iter().enumerate() {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (shared, phases) = (shared.clone(), phases.subscribe());
        let accept = listener.take().map(|listener| (listener, senders.clone()));
        threads.push(spawn(&number.to_string(), move || {
            let seed = shared.settings.seed.wrapping_add(number as u64);
            run(
                runtime,
                &Rc::new(Shard::new(shared, phases, seed)),
                clients,
                accept,
            );
        })?);
    }
    Ok(threads)
}

/// A client's socket, and its place.
type Client = (TcpStream, Seated);
type Senders = Vec<mpsc::UnboundedSender<Client>>;

/// Serves until the plane is stopped; what then runs is dropped with its connections.
fn run(
    runtime: Runtime,
    shard: &Rc<Shard>,
    mut clients: mpsc::UnboundedReceiver<Client>,
    accept: Option<(TcpListener, Senders)>,
) {
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        if let Some((listener, senders)) = accept {
            let connections = shard.plane.connections.clone();
            spawn_local(accept_all(
                listener,
                senders,
                connections,
                shard.phases.clone(),
            ));
        }
        let turns = shard.turns.clone();
        spawn_local(async move { turns.run().await });
        let shard_of_clients = shard.clone();
        spawn_local(async move {
            while let Some((client, seated)) = clients.recv().await {
                if let Ok(socket) = tokio::net::TcpStream::from_std(client) {
                    spawn_local(connection::serve(shard_of_clients.clone(), socket, seated));
                }
            }
        });
        let mut phases = shard.phases.clone();
        let _ = phases.wait_for(|phase| *phase == Phase::Stopped).await;
    });
    // Replicas' connections are tasks of the same set: all of it goes at once.
    drop(local);
    // A name server that does not answer keeps a thread of the runtime's for long: nobody waits for that.
    runtime.shutdown_background();
}

async fn accept_all(
    listener: TcpListener,
    senders: Senders,
    connections: Arc<Connections>,
    mut phases: watch::Receiver<Phase>,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut turn = senders.iter().cycle();
    let accepting = async {
        loop {
            let accepted = listener
                .accept()
                .await
                .and_then(|(socket, _)| socket.into_std());
            match accepted {
                // A shard that is gone takes nobody, and the plane with it.
                Ok(socket) => {
                    // Where there is no place for it, it is closed at once.
                    let seated = connections.seat();
                    let client = seated.map(|seated| (socket, seated));
                    let _ = turn
                        .next()
                        .zip(client)
                        .map(|(shard, client)| shard.send(client));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    };
    let mut accepting = std::pin::pin!(accepting);
    let mut leaving = std::pin::pin!(phases.wait_for(|phase| *phase != Phase::Serving));
    std::future::poll_fn(|cx| {
        if leaving.as_mut().poll(cx).is_ready() {
            return std::task::Poll::Ready(());
        }
        accepting.as_mut().poll(cx)
    })
    .await;
}
