//! Snapshots come as a stream that ends in a SHA-256 of everything before it. The adapter passes the pieces on as they
//! come, the trailer included (files of etcd carry it), and ends in an error when the trailer is missing or wrong.
//! Nothing is buffered: whoever stores the pieces keeps the result only when the stream ended well.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use sha2::{Digest, Sha256};

use crate::client::aside::Aside;
use crate::client::bolt::{BoltError, Checker, Opened};
use crate::client::error::Error;

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
    /// The checksum is right and the database inside is not.
    #[error("{0}")]
    Harmed(#[from] BoltError),
}

/// What a complete snapshot turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// SHA-256 of the whole file, its trailer included: what `sha256sum` says of it.
    pub sha256: [u8; 32],
    /// Bytes of the whole file.
    pub bytes: u64,
}

/// A snapshot that is complete and can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sound {
    /// The file.
    pub whole: Whole,
    /// What its database holds.
    pub opened: Opened,
}

impl Sound {
    /// SHA-256 of the whole file in hexadecimal.
    pub fn sha256(&self) -> String {
        hex(&self.whole.sha256)
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Follows a snapshot as it passes: its trailer, and what its database holds.
pub struct Passing {
    hash: Sha256,
    /// The last bytes seen, which may be the trailer.
    tail: Vec<u8>,
    total: u64,
    database: Checker,
}

impl Default for Passing {
    fn default() -> Self {
        Self {
            hash: Sha256::new(),
            tail: Vec::with_capacity(TRAILER),
            total: 0,
            database: Checker::default(),
        }
    }
}

impl Passing {
    /// One that works beside the stream.
    pub fn aside() -> Aside<Result<Sound, SnapshotError>> {
        Aside::start(Self::default(), Self::take, Self::finish)
    }

    /// Takes the next bytes.
    pub fn take(&mut self, piece: &[u8]) {
        self.total += piece.len() as u64;
        let spare = (self.tail.len() + piece.len()).saturating_sub(TRAILER);
        let from_tail = spare.min(self.tail.len());
        let (old, new) = (self.tail.drain(..from_tail).collect::<Vec<_>>(), spare - from_tail);
        for part in [&old[..], &piece[..new]] {
            self.hash.update(part);
            self.database.push(part);
        }
        self.tail.extend_from_slice(&piece[new..]);
    }

    /// Judges what has passed.
    pub fn finish(self) -> Result<Sound, SnapshotError> {
        if self.total % SECTOR != TRAILER as u64 {
            return Err(SnapshotError::NoTrailer(self.total));
        }
        if self.hash.clone().finalize().as_slice() != self.tail.as_slice() {
            return Err(SnapshotError::WrongChecksum);
        }
        let whole = Whole {
            sha256: self.hash.chain_update(&self.tail).finalize().into(),
            bytes: self.total,
        };
        let opened = self.database.finish()?;
        Ok(Sound { whole, opened })
    }
}

struct State<S> {
    pieces: Pin<Box<S>>,
    passing: Option<Aside<Result<Sound, SnapshotError>>>,
    patience: Duration,
    sound: Arc<OnceLock<Sound>>,
}

/// Passes the pieces on, and ends in an error unless they were a complete and readable snapshot.
///
/// `sound` is told what it was when it ended well.
pub fn verified<S>(
    pieces: S,
    patience: Duration,
    sound: Arc<OnceLock<Sound>>,
) -> impl Stream<Item = Result<Bytes, SnapshotError>> + Send + use<S>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + 'static,
{
    let state = State {
        pieces: Box::pin(pieces),
        passing: Some(Passing::aside()),
        patience,
        sound,
    };
    futures::stream::unfold(state, |mut state| async move {
        let mut passing = state.passing.take()?;
        let next = tokio::time::timeout(state.patience, state.pieces.next()).await;
        let item = match next {
            Err(_) => Err(Error::TimedOut(format!("no further piece within {:?}", state.patience)).into()),
            Ok(Some(Err(error))) => Err(error.into()),
            Ok(Some(Ok(piece))) => {
                passing.take(piece.clone()).await;
                state.passing = Some(passing);
                Ok(piece)
            }
            Ok(None) => match passing.finish().await {
                Ok(Ok(sound)) => {
                    let _first = state.sound.set(sound);
                    return None;
                }
                Ok(Err(error)) => Err(error),
                Err(ended) => Err(Error::Refused(format!("checking the snapshot: {ended}")).into()),
            },
        };
        Some((item, state))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(bytes: &[u8], size: usize) -> (Vec<u8>, Option<SnapshotError>) {
        let pieces: Vec<_> = bytes
            .chunks(size)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let told = Arc::new(OnceLock::new());
        let source = futures::stream::iter(pieces);
        let mut stream = Box::pin(verified(source, Duration::from_secs(1), told.clone()));
        let (mut out, mut error) = (Vec::new(), None);
        while let Some(item) = stream.next().await {
            match item {
                Ok(piece) => out.extend_from_slice(&piece),
                Err(found) => error = Some(found),
            }
        }
        assert_eq!(told.get().is_some(), error.is_none());
        (out, error)
    }

    #[tokio::test]
    async fn the_trailer_decides() {
        let data = vec![7_u8; 2048];
        let mut whole = data.clone();
        whole.extend_from_slice(Sha256::digest(&data).as_slice());
        for size in [1, 31, 32, 33, 500, 5000] {
            let (out, error) = run(&whole, size).await;
            assert_eq!(out, whole, "pieces of {size}");
            // The trailer is right, and there is no database before it.
            assert!(matches!(error, Some(SnapshotError::Harmed(_))), "{error:?}");
        }
        let mut harmed = whole.clone();
        harmed[100] ^= 1;
        assert_eq!(run(&harmed, 100).await.1, Some(SnapshotError::WrongChecksum));
        assert_eq!(run(&data, 100).await.1, Some(SnapshotError::NoTrailer(2048)));
        assert_eq!(run(&whole[..1000], 100).await.1, Some(SnapshotError::NoTrailer(1000)));
        assert_eq!(run(&[], 100).await.1, Some(SnapshotError::NoTrailer(0)));
    }
}
