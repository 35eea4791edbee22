//! A socket under HTTP/2: it gathers what is written in one turn, reads much at once where much comes, and
//! remembers when it last brought something.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is gathered at most before it is written.
const GATHERED_BYTES: usize = 128 << 10;

/// What is read at once while the peer sends more than HTTP/2 asks for.
const READ_BYTES: usize = 128 << 10;

/// When bytes came last.
#[derive(Clone)]
pub(crate) struct LastRead(Rc<Cell<Instant>>);

impl LastRead {
    pub fn get(&self) -> Instant {
        self.0.get()
    }
}

pub(crate) struct Line<T> {
    socket: T,
    last_read: LastRead,
    /// Written, and not yet given to the socket.
    gathered: BytesMut,
    /// Read from the socket, and not yet asked for.
    ahead: Vec<u8>,
    ahead_from: usize,
    /// The last read brought as much as was asked for.
    is_behind: bool,
}

impl<T> Line<T> {
    pub fn new(socket: T) -> (Self, LastRead) {
        let last_read = LastRead(Rc::new(Cell::new(Instant::now())));
        let line = Self {
            socket,
            last_read: last_read.clone(),
            gathered: BytesMut::new(),
            ahead: Vec::new(),
            ahead_from: 0,
            is_behind: false,
        };
        (line, last_read)
    }

    /// Gives what was read ahead; false if there is nothing.
    fn take_ahead(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let ahead = &self.ahead[self.ahead_from..];
        let length = ahead.len().min(buffer.remaining());
        buffer.put_slice(&ahead[..length]);
        self.ahead_from += length;
        length > 0
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Line<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.take_ahead(buffer) {
            return Poll::Ready(Ok(()));
        }
        let line = &mut *self;
        if line.is_behind && buffer.remaining() < READ_BYTES {
            line.ahead.resize(READ_BYTES, 0);
            let mut ahead = ReadBuf::new(&mut line.ahead);
            let read = Pin::new(&mut line.socket).poll_read(cx, &mut ahead);
            let length = ahead.filled().len();
            line.ahead.truncate(length);
            line.ahead_from = 0;
            ready!(read)?;
            line.is_behind = length == READ_BYTES;
            line.take_ahead(buffer);
            if !line.is_behind && line.ahead_from == length {
                line.ahead = Vec::new(); // a line that rests keeps no memory
                line.ahead_from = 0;
            }
        } else {
            ready!(Pin::new(&mut line.socket).poll_read(cx, buffer))?;
            line.is_behind = buffer.remaining() == 0;
        }
        line.last_read.0.set(Instant::now());
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> Line<T> {
    fn poll_give(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, &self.gathered))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gathered.advance(written);
        }
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
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.gathered.len() >= GATHERED_BYTES {
            ready!(self.poll_give(cx))?;
        }
        let before = self.gathered.len();
        for piece in pieces {
            self.gathered.extend_from_slice(piece);
        }
        Poll::Ready(Ok(self.gathered.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_give(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_give(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
