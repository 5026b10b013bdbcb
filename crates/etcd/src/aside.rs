//! Work on a stream that is done beside it, on a thread of its own: hashing, checking and writing go on while the next piece
//! comes. A few pieces may wait in between; whoever is slower sets the pace.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pieces that may wait: as much memory as so many of them take.
const AHEAD: usize = 8;

/// A worker that gets every piece in order. It ends when it is dropped.
pub struct Aside<T> {
    pieces: mpsc::Sender<Bytes>,
    ended: JoinHandle<T>,
}

impl<T: Send + 'static> Aside<T> {
    /// Starts one: what it begins with, what it does with a piece, and how it ends.
    pub fn start<W: Send + 'static>(
        mut worker: W,
        mut take: impl FnMut(&mut W, &[u8]) + Send + 'static,
        finish: impl FnOnce(W) -> T + Send + 'static,
    ) -> Self {
        let (pieces, mut come) = mpsc::channel::<Bytes>(AHEAD);
        let ended = tokio::task::spawn_blocking(move || {
            while let Some(piece) = come.blocking_recv() {
                take(&mut worker, &piece);
            }
            finish(worker)
        });
        Self { pieces, ended }
    }

    /// Gives it a piece; waits while too many wait.
    pub async fn take(&self, piece: Bytes) {
        // A worker that is gone has panicked, which the end tells.
        let _gone = self.pieces.send(piece).await;
    }

    /// There are no more pieces: what it came to. An error only if it panicked, or the process is ending.
    pub async fn finish(self) -> Result<T, tokio::task::JoinError> {
        drop(self.pieces);
        self.ended.await
    }
}
