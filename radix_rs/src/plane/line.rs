//! A socket under HTTP/2: it gathers what is written in one turn, reads much at once where much comes, and
//! remembers when it last brought something.
//!
//! `h2` flushes after each frame of data. That is taken for a wish: who drives a connection writes what was
//! gathered at the end of each of its turns, by [`Gathered`].

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::turns::Turns;

/// What is gathered at most before it is written.
const GATHERED_BYTES: usize = 128 << 10;

/// What is read at once while the peer sends more than HTTP/2 asks for.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// What a line of this shard read ahead into last, for the next that does: to get such memory, and to write
    /// it the first time, costs as much as to copy it.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

struct State<T> {
    socket: T,
    last_read: Instant,
    /// Since when the socket takes nothing of what is gathered.
    stuck: Option<Instant>,
    turns: Rc<Turns>,
    /// Written, and not yet given to the socket.
    gathered: BytesMut,
    /// Read from the socket, and not yet asked for: of `buffer`.
    ahead: Range<usize>,
    /// Empty, or `READ_BYTES` long.
    buffer: Vec<u8>,
    /// The last read brought as much as was asked for.
    is_behind: bool,
}

/// What HTTP/2 reads and writes.
pub(crate) struct Line<T>(Rc<RefCell<State<T>>>);

/// The other end of a line.
pub(crate) struct Gathered<T>(Rc<RefCell<State<T>>>);

impl<T> Line<T> {
    /// `turns`: those of its shard.
    pub fn new(socket: T, turns: Rc<Turns>) -> (Self, Gathered<T>) {
        let state = Rc::new(RefCell::new(State {
            socket,
            last_read: Instant::now(),
            stuck: None,
            turns,
            gathered: BytesMut::new(),
            ahead: 0..0,
            buffer: Vec::new(),
            is_behind: false,
        }));
        (Self(state.clone()), Gathered(state))
    }
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    /// When bytes came last.
    pub fn last_read(&self) -> Instant {
        self.0.borrow().last_read
    }

    /// Since when the peer takes nothing of what waits for it.
    pub fn stuck(&self) -> Option<Instant> {
        self.0.borrow().stuck
    }

    /// Ready once all that was gathered is with the socket.
    pub fn poll_give(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_give(cx)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Gathered<T> {
    /// Says that nothing more comes from here; ready once nothing more comes from there.
    pub fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        let _ = ready!(state.poll_give(cx));
        let _ = ready!(Pin::new(&mut state.socket).poll_shutdown(cx));
        let mut rest = [0; 4096];
        loop {
            let mut rest = ReadBuf::new(&mut rest);
            let read = ready!(Pin::new(&mut state.socket).poll_read(cx, &mut rest));
            if read.is_err() || rest.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> State<T> {
    fn poll_give(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut self.socket).poll_write(cx, &self.gathered)
            else {
                self.stuck.get_or_insert_with(Instant::now);
                return Poll::Pending;
            };
            let written = written?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.stuck = None;
            self.gathered.advance(written);
        }
        // One that encrypts may hold back what it took.
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.stuck = match flushed {
            Poll::Ready(_) => None,
            Poll::Pending => self.stuck.or_else(|| Some(Instant::now())),
        };
        flushed
    }
}

/// Reads. Who speaks TLS and closes without saying so, as gRPC does, has closed: what is missing HTTP/2 sees itself.
fn poll_socket(
    socket: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    Pin::new(socket)
        .poll_read(cx, buffer)
        .map(|read| match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            read => read,
        })
}

impl<T: AsyncRead + Unpin> State<T> {
    /// Gives what was read ahead; false if there is nothing.
    fn take_ahead(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let length = self.ahead.len().min(buffer.remaining());
        let end = self.ahead.start + length;
        buffer.put_slice(&self.buffer[self.ahead.start..end]);
        self.ahead.start = end;
        length > 0
    }

    /// All that was read ahead is taken: a line that rests, or lets others go first, keeps no memory.
    fn drop_ahead(&mut self) {
        self.ahead = 0..0;
        if !self.buffer.is_empty() {
            SPARE.set(std::mem::take(&mut self.buffer));
        }
    }

    /// Reads more than is asked for.
    fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() {
            self.buffer = SPARE.take();
            self.buffer.resize(READ_BYTES, 0);
        }
        let mut buffer = ReadBuf::new(&mut self.buffer);
        let read = poll_socket(&mut self.socket, cx, &mut buffer);
        self.ahead = 0..buffer.filled().len();
        self.is_behind = self.ahead.len() == READ_BYTES;
        if self.ahead.is_empty() {
            self.drop_ahead();
        }
        read
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Line<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        if state.take_ahead(buffer) {
            return Poll::Ready(Ok(()));
        }
        let turn = state.turns.poll_left(cx);
        if turn.is_pending() || !state.is_behind {
            state.drop_ahead();
        }
        ready!(turn);
        let before = buffer.remaining();
        if state.is_behind && buffer.remaining() < READ_BYTES {
            ready!(state.poll_read_ahead(cx))?;
            state.take_ahead(buffer);
        } else {
            ready!(poll_socket(&mut state.socket, cx, buffer))?;
            state.is_behind = buffer.remaining() == 0;
        }
        let read = before - buffer.remaining() + state.ahead.len();
        state.turns.read(read);
        state.last_read = Instant::now();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Line<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.borrow_mut();
        if state.gathered.len() >= GATHERED_BYTES {
            ready!(state.poll_give(cx))?;
        }
        let before = state.gathered.len();
        for piece in pieces {
            state.gathered.extend_from_slice(piece);
        }
        Poll::Ready(Ok(state.gathered.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        ready!(state.poll_give(cx))?;
        Pin::new(&mut state.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::runtime::Builder;

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(test);
    }

    #[test]
    fn what_is_written_leaves_at_the_end_of_the_turn() {
        run(async {
            let (near, mut far) = duplex(1 << 20);
            let (mut line, gathered) = Line::new(near, Rc::new(Turns::new()));
            for _ in 0..3 {
                line.write_all(b"abc").await.unwrap();
                line.flush().await.unwrap();
            }
            let mut come = [0; 9];
            assert!(
                poll_fn(|cx| Poll::Ready(
                    Pin::new(&mut far)
                        .poll_read(cx, &mut ReadBuf::new(&mut come))
                        .is_pending()
                ))
                .await
            );
            poll_fn(|cx| gathered.poll_give(cx)).await.unwrap();
            far.read_exact(&mut come).await.unwrap();
            assert_eq!(come, *b"abcabcabc");
        });
    }

    #[test]
    fn a_line_that_rests_keeps_no_memory() {
        run(async {
            let (near, mut far) = duplex(1 << 20);
            let (mut line, gathered) = Line::new(near, Rc::new(Turns::new()));
            for length in [1000, READ_BYTES, READ_BYTES + 20_000, 5 * READ_BYTES + 9] {
                far.write_all(&vec![7; length]).await.unwrap();
                let mut come = vec![0; length];
                for part in come.chunks_mut(999) {
                    line.read_exact(part).await.unwrap();
                }
                let rests = poll_fn(|cx| {
                    let mut more = [0; 999];
                    let read = Pin::new(&mut line).poll_read(cx, &mut ReadBuf::new(&mut more));
                    Poll::Ready(read.is_pending())
                });
                assert!(rests.await);
                assert_eq!(gathered.0.borrow().buffer.capacity(), 0, "{length}");
            }
        });
    }

    #[test]
    fn what_comes_is_what_was_sent_however_it_is_read() {
        run(async {
            let (near, mut far) = duplex(1 << 20);
            let (mut line, _gathered) = Line::new(near, Rc::new(Turns::new()));
            let sent: Vec<u8> = (0..700_000u32).map(|i| (i % 251) as u8).collect();
            let sending = async {
                far.write_all(&sent).await.unwrap();
                drop(far);
            };
            sending.await;
            let mut come = Vec::new();
            let mut part = [0; 999];
            loop {
                let length = line.read(&mut part).await.unwrap();
                if length == 0 {
                    break;
                }
                come.extend_from_slice(&part[..length]);
            }
            assert!(come == sent);
        });
    }
}
