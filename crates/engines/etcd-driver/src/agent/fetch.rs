//! A backup that is fetched into a file, and judged by what was written: the judge reads behind the writer, so that it does not
//! hold the fetching up, and may go on when the file is already of use.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::client::{Aside, Passing, SnapshotError, Sound};
use futures::StreamExt;
use stateward_etcd::api::agent::Failure;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::agent::failure::{corrupt, interrupted, of_io, of_unpack};
use crate::agent::place::Opening;

/// What the judge reads at once: it stays in the processor's cache.
const READ: usize = 256 << 10;

/// A file whose last byte is there.
pub(crate) struct Fetched {
    location: String,
    judged: JoinHandle<std::io::Result<Result<Sound, SnapshotError>>>,
}

impl Fetched {
    /// What it turned out to be.
    pub(crate) async fn judged(self) -> Result<Sound, Failure> {
        let judged = self.judged.await.map_err(|ended| interrupted(&ended))?;
        let judged = judged.map_err(|error| of_io(&error, "reading what was fetched"))?;
        judged.map_err(|error| corrupt(&self.location, error))
    }
}

/// Fetches and unpacks a backup.
pub(crate) async fn fetch(opening: &Opening, key: &str, into: &Path) -> Result<Fetched, Failure> {
    let location = opening.store.location(key);
    let mut pieces = std::pin::pin!(opening.content(key).await?);
    let (written, behind) = File::create(into)
        .and_then(|written| Ok((written, File::open(into)?)))
        .map_err(|error| of_io(&error, &format!("writing {}", into.display())))?;
    let (tell, told) = channel();
    let judged = spawn_blocking(move || judge(behind, &told));
    let writing = Writing {
        file: written,
        tell,
        done: Ok(()),
    };
    let mut writing = Aside::start(writing, Writing::take, |writing| writing.done);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| of_unpack(&error, &location))?;
        writing.take(piece).await;
    }
    let written = writing.finish().await.map_err(|ended| interrupted(&ended))?;
    written.map_err(|error| of_io(&error, "writing what is fetched"))?;
    Ok(Fetched { location, judged })
}

struct Writing {
    file: File,
    /// Who is told how many bytes more there are.
    tell: Sender<usize>,
    done: std::io::Result<()>,
}

impl Writing {
    fn take(&mut self, piece: &[u8]) {
        if self.done.is_ok() {
            self.done = self.file.write_all(piece);
            // A judge that is gone had an error, which it tells.
            let _gone = self.tell.send(piece.len());
        }
    }
}

fn judge(mut file: File, told: &Receiver<usize>) -> std::io::Result<Result<Sound, SnapshotError>> {
    let mut passing = Passing::default();
    let mut buffer = vec![0; READ];
    while let Ok(mut more) = told.recv() {
        // Whatever was told meanwhile is read along.
        more += told.try_iter().sum::<usize>();
        while more > 0 {
            let read = &mut buffer[..more.min(READ)];
            file.read_exact(read)?;
            passing.take(read);
            more -= read.len();
        }
    }
    Ok(passing.finish())
}
