//! Pieces of an answer that came together go on together.

use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;

/// What is passed on at once, if it is there.
const BURST_BYTES: usize = 16 << 10;

/// What is here of an answer, as one piece: many small ones cost more each than they hold.
pub(crate) fn poll_burst(
    body: &mut RecvStream,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, h2::Error>>> {
    let first = match ready!(body.poll_data(cx)) {
        Some(Ok(first)) => first,
        last => return Poll::Ready(last),
    };
    let mut burst = Burst::One(first);
    while burst.length() < BURST_BYTES {
        // An end or an error stays for the next time.
        let Poll::Ready(Some(Ok(piece))) = body.poll_data(cx) else {
            break;
        };
        burst = burst.with(&piece);
    }
    Poll::Ready(Some(Ok(burst.whole())))
}

enum Burst {
    One(Bytes),
    Many(BytesMut),
}

impl Burst {
    fn length(&self) -> usize {
        match self {
            Self::One(piece) => piece.len(),
            Self::Many(pieces) => pieces.len(),
        }
    }

    fn with(self, piece: &[u8]) -> Self {
        let mut joined = match self {
            Self::One(first) => {
                let mut joined = BytesMut::with_capacity(2 * (first.len() + piece.len()).max(256));
                joined.extend_from_slice(&first);
                joined
            }
            Self::Many(joined) => joined,
        };
        joined.extend_from_slice(piece);
        Self::Many(joined)
    }

    fn whole(self) -> Bytes {
        match self {
            Self::One(piece) => piece,
            Self::Many(pieces) => pieces.freeze(),
        }
    }
}
