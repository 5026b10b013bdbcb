//! Work on a stream that is done beside it, on a thread of its own: hashing, checking and writing go on while the next piece
//! comes. A few pieces may wait in between; whoever is slower sets the pace.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pieces are handed over in heaps of about this size: to wake a thread for each would cost more than what it does with it.
const HEAP: usize = 512 << 10;
/// Heaps that may wait.
const AHEAD: usize = 4;

/// A worker that gets every piece in order. It ends when it is dropped.
pub struct Aside<T> {
    heap: Vec<Bytes>,
    /// Its bytes.
    heaped: usize,
    heaps: mpsc::Sender<Vec<Bytes>>,
    ended: JoinHandle<T>,
}

impl<T: Send + 'static> Aside<T> {
    /// Starts one: what it begins with, what it does with a piece, and how it ends.
    pub fn start<W: Send + 'static>(
        mut worker: W,
        mut take: impl FnMut(&mut W, &[u8]) + Send + 'static,
        finish: impl FnOnce(W) -> T + Send + 'static,
    ) -> Self {
        let (heaps, mut come) = mpsc::channel::<Vec<Bytes>>(AHEAD);
        let ended = tokio::task::spawn_blocking(move || {
            while let Some(heap) = come.blocking_recv() {
                heap.iter().for_each(|piece| take(&mut worker, piece));
            }
            finish(worker)
        });
        Self {
            heap: Vec::new(),
            heaped: 0,
            heaps,
            ended,
        }
    }

    /// Gives it a piece; waits while too many wait.
    pub async fn take(&mut self, piece: Bytes) {
        self.heaped += piece.len();
        self.heap.push(piece);
        if self.heaped >= HEAP {
            self.hand_over().await;
        }
    }

    async fn hand_over(&mut self) {
        self.heaped = 0;
        // A worker that is gone has panicked, which the end tells.
        let _gone = self.heaps.send(std::mem::take(&mut self.heap)).await;
    }

    /// There are no more pieces: what it came to. An error only if it panicked, or the process is ending.
    pub async fn finish(mut self) -> Result<T, tokio::task::JoinError> {
        self.hand_over().await;
        drop(self.heaps);
        self.ended.await
    }
}
