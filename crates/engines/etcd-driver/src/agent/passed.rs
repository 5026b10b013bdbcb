//! What went through a stream, in short: to tell whether what comes back is what was sent.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use futures::{Stream, TryStreamExt};

/// Length and CRC-64 of what has passed. Against accidents that says as much as another SHA-256, and costs far less.
#[derive(Clone, Debug)]
pub(crate) struct Passed {
    bytes: u64,
    crc: Digest,
}

impl Default for Passed {
    fn default() -> Self {
        Self {
            bytes: 0,
            crc: Digest::new(CrcAlgorithm::Crc64Nvme),
        }
    }
}

impl PartialEq for Passed {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.crc.finalize() == other.crc.finalize()
    }
}

impl Passed {
    pub(crate) fn take(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.crc.update(piece);
    }

    /// All of a stream.
    pub(crate) async fn of<E>(pieces: impl Stream<Item = Result<Bytes, E>>) -> Result<Self, E> {
        let take = |mut passed: Self, piece: Bytes| {
            passed.take(&piece);
            std::future::ready(Ok(passed))
        };
        pieces.try_fold(Self::default(), take).await
    }
}

/// Follows a stream that somebody else consumes.
#[derive(Clone, Default)]
pub(crate) struct Follower(Arc<Mutex<Passed>>);

impl Follower {
    pub(crate) fn follow<E>(
        &self,
        pieces: impl Stream<Item = Result<Bytes, E>>,
    ) -> impl Stream<Item = Result<Bytes, E>> {
        let passed = self.0.clone();
        pieces.inspect_ok(move |piece| passed.lock().unwrap_or_else(PoisonError::into_inner).take(piece))
    }

    /// What has passed so far.
    pub(crate) fn passed(&self) -> Passed {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::stream::iter;

    use super::*;

    fn passed(pieces: &[&'static [u8]]) -> Passed {
        let pieces = pieces.iter().map(|piece| Ok::<_, ()>(Bytes::from_static(piece)));
        block_on(Passed::of(iter(pieces))).expect("no error")
    }

    #[test]
    fn the_same_bytes_are_told_however_they_are_cut() {
        let sent = passed(&[b"first", b"second"]);
        assert!(sent == passed(&[b"firstsecond"]));
        let others: [&[&[u8]]; 4] = [
            &[b"firstsecon"],
            &[b"firstsecond\0"],
            &[b"firstsecone"],
            &[b"secondfirst"],
        ];
        for other in others {
            assert!(sent != passed(other), "{other:?}");
        }
    }
}
