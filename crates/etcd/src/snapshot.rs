//! Snapshots come as a stream that ends in a SHA-256 of everything before it. The adapter passes the pieces on as they
//! come, the trailer included (files of etcd carry it), and ends in an error when the trailer is missing or wrong.
//! Nothing is buffered: whoever stores the pieces keeps the result only when the stream ended well.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use sha2::{Digest, Sha256};

use crate::error::Error;

/// Length of the trailer.
const TRAILER: usize = 32;
/// A database is a whole number of these, which is how etcd's own tools tell that a trailer is there.
const SECTOR: u64 = 512;

/// Why a snapshot is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The stream broke off.
    #[error("the snapshot broke off: {0}")]
    Broken(#[from] Error),
    /// It ended without a trailer.
    #[error("the snapshot has no checksum at its end ({0} bytes): it is incomplete")]
    NoTrailer(u64),
    /// The trailer does not fit.
    #[error("the snapshot's checksum is wrong: it was harmed on its way")]
    WrongChecksum,
}

struct State<S> {
    pieces: Pin<Box<S>>,
    hash: Sha256,
    /// The last bytes seen, which may be the trailer.
    tail: Vec<u8>,
    total: u64,
    patience: Duration,
    ended: bool,
}

/// Passes the pieces on and checks the trailer at the end.
pub fn verified<S>(pieces: S, patience: Duration) -> impl Stream<Item = Result<Bytes, SnapshotError>> + Send + use<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + 'static,
{
    let state = State {
        pieces: Box::pin(pieces),
        hash: Sha256::new(),
        tail: Vec::with_capacity(TRAILER),
        total: 0,
        patience,
        ended: false,
    };
    futures::stream::unfold(state, |mut state| async move {
        if state.ended {
            return None;
        }
        let next = tokio::time::timeout(state.patience, state.pieces.next()).await;
        let item = match next {
            Err(_) => Err(Error::TimedOut(format!("no further piece within {:?}", state.patience)).into()),
            Ok(Some(Err(error))) => Err(error.into()),
            Ok(Some(Ok(piece))) => {
                state.take(&piece);
                return Some((Ok(piece), state));
            }
            Ok(None) => match state.judge() {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
        };
        state.ended = true;
        Some((item, state))
    })
}

impl<S> State<S> {
    fn take(&mut self, piece: &[u8]) {
        self.total += piece.len() as u64;
        let spare = (self.tail.len() + piece.len()).saturating_sub(TRAILER);
        let from_tail = spare.min(self.tail.len());
        self.hash.update(&self.tail[..from_tail]);
        self.tail.drain(..from_tail);
        let from_piece = spare - from_tail;
        self.hash.update(&piece[..from_piece]);
        self.tail.extend_from_slice(&piece[from_piece..]);
    }

    fn judge(&mut self) -> Result<(), SnapshotError> {
        if self.total % SECTOR != TRAILER as u64 {
            return Err(SnapshotError::NoTrailer(self.total));
        }
        if self.hash.finalize_reset().as_slice() != self.tail.as_slice() {
            return Err(SnapshotError::WrongChecksum);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(bytes: &[u8], size: usize) -> (Vec<u8>, Option<SnapshotError>) {
        let pieces: Vec<_> = bytes
            .chunks(size)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let mut stream = Box::pin(verified(futures::stream::iter(pieces), Duration::from_secs(1)));
        let (mut out, mut error) = (Vec::new(), None);
        while let Some(item) = stream.next().await {
            match item {
                Ok(piece) => out.extend_from_slice(&piece),
                Err(found) => error = Some(found),
            }
        }
        (out, error)
    }

    #[tokio::test]
    async fn the_trailer_decides() {
        let data = vec![7_u8; 2048];
        let mut whole = data.clone();
        whole.extend_from_slice(Sha256::digest(&data).as_slice());
        for size in [1, 31, 32, 33, 500, 5000] {
            let (out, error) = run(&whole, size).await;
            assert_eq!((out, error), (whole.clone(), None), "pieces of {size}");
        }
        let mut harmed = whole.clone();
        harmed[100] ^= 1;
        assert_eq!(run(&harmed, 100).await.1, Some(SnapshotError::WrongChecksum));
        assert_eq!(run(&data, 100).await.1, Some(SnapshotError::NoTrailer(2048)));
        assert_eq!(run(&whole[..1000], 100).await.1, Some(SnapshotError::NoTrailer(1000)));
        assert_eq!(run(&[], 100).await.1, Some(SnapshotError::NoTrailer(0)));
    }
}
