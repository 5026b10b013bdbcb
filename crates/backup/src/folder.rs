//! A file of a folder on its way to its place. It is written beside it as `name#1`, goes to the disk while more of it comes,
//! can be read back before anybody sees it, and takes its name in one step.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Pieces are written in heaps of about this size: to wake a thread for each would cost more than to write it.
const HEAP: usize = 512 << 10;
/// Heaps that may wait to be written.
const AHEAD: usize = 4;
/// How much is written before the disk is told to take it. One that has nothing to do until the last byte has come makes
/// everybody wait then.
const EARLY: u64 = 32 << 20;
/// Others may stage a file of the same name; so many at once are a mistake.
const STAGED_AT_ONCE: u32 = 1000;

/// Whether a file is the staging of a file that begins with a name: a `#` and digits at the end, as object_store stages too.
pub(crate) fn is_staged(file: &str, name: &str) -> bool {
    let digits = |suffix: &str| !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit());
    file.starts_with(name) && file.rsplit_once('#').is_some_and(|(_, suffix)| digits(suffix))
}

/// A file that nobody sees yet. Dropping it takes it back.
pub(crate) struct Staged {
    /// Where it is until it is good.
    pub(crate) path: PathBuf,
    place: PathBuf,
    published: bool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            let _best_effort = std::fs::remove_file(&self.path);
        }
    }
}

impl Staged {
    /// Begins a file that is to be at a place.
    pub(crate) fn begin(place: &Path) -> io::Result<(Self, Writing)> {
        if let Some(parent) = place.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut number = 0;
        loop {
            number += 1;
            let mut name = place.file_name().unwrap_or_default().to_owned();
            name.push(format!("#{number}"));
            let path = place.with_file_name(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let staged = Self {
                        path,
                        place: place.to_owned(),
                        published: false,
                    };
                    return Ok((staged, Writing::start(file)?));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < STAGED_AT_ONCE => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives it its name, which stays after a power cut: the folders up to the root are told to the disk, too.
    pub(crate) fn publish(mut self, root: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, &self.place)?;
        self.published = true;
        let folders = self
            .place
            .ancestors()
            .skip(1)
            .take_while(|folder| folder.starts_with(root));
        folders
            .into_iter()
            .try_for_each(|folder| File::open(folder)?.sync_all())
    }
}

/// The writing of a staged file, beside the stream that it comes from.
pub(crate) struct Writing {
    heap: Vec<Bytes>,
    /// Its bytes.
    heaped: usize,
    heaps: mpsc::Sender<Vec<Bytes>>,
    written: JoinHandle<io::Result<Written>>,
}

/// A file whose last byte is written, and which is still on its way to the disk.
pub(crate) struct Written {
    file: File,
    early: JoinHandle<io::Result<()>>,
}

impl Writing {
    fn start(mut file: File) -> io::Result<Self> {
        let (heaps, mut come) = mpsc::channel::<Vec<Bytes>>(AHEAD);
        let (tell, told) = sync_channel::<()>(1);
        let clone = file.try_clone()?;
        let early = spawn_blocking(move || {
            // An error of the disk is told once for each open file: it must not be passed over here.
            while told.recv().is_ok() {
                clone.sync_data()?;
            }
            Ok(())
        });
        let written = spawn_blocking(move || {
            let mut waits = 0;
            while let Some(heap) = come.blocking_recv() {
                for piece in &heap {
                    file.write_all(piece)?;
                    waits += piece.len() as u64;
                }
                if waits >= EARLY && begin_early(&tell) {
                    waits = 0;
                }
            }
            Ok(Written { file, early })
        });
        Ok(Self {
            heap: Vec::new(),
            heaped: 0,
            heaps,
            written,
        })
    }

    /// Gives it a piece; waits while too many wait. False when writing has ended in an error, which the end tells.
    pub(crate) async fn take(&mut self, piece: Bytes) -> bool {
        self.heaped += piece.len();
        self.heap.push(piece);
        self.heaped < HEAP || self.hand_over().await
    }

    async fn hand_over(&mut self) -> bool {
        self.heaped = 0;
        self.heaps.send(std::mem::take(&mut self.heap)).await.is_ok()
    }

    /// There are no more pieces.
    pub(crate) async fn end(mut self) -> io::Result<Written> {
        self.hand_over().await;
        drop(self.heaps);
        self.written.await?
    }
}

/// Tells the disk to take what is there, unless it is busy with what it was told before.
fn begin_early(tell: &SyncSender<()>) -> bool {
    tell.try_send(()).is_ok()
}

impl Written {
    /// Returns when the disk has everything.
    pub(crate) async fn sync(self) -> io::Result<()> {
        self.early.await??;
        spawn_blocking(move || self.file.sync_all()).await?
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use stateward_core::store::{FileStore, StoreBlocks};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{PutError, Store};

    type Pieces = Vec<Result<Bytes, &'static str>>;

    fn files(folder: &Path) -> Vec<String> {
        let all = std::fs::read_dir(folder).into_iter().flatten().flatten();
        all.map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    #[tokio::test]
    async fn nobody_sees_a_file_before_it_is_approved() {
        let root = tempfile::tempdir().expect("a folder");
        let file = FileStore {
            claim_name: "any".into(),
            path: "dir/file".into(),
        };
        let blocks = StoreBlocks {
            file: Some(file),
            ..StoreBlocks::default()
        };
        let store = Store::open(&blocks, root.path(), root.path()).expect("a store");
        let dir = root.path().join("dir");
        let content = vec![7_u8; 3 << 20];
        let pieces: Pieces = content
            .chunks(32 << 10)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        for approved in [false, true] {
            let check = async |back: futures::stream::BoxStream<'static, Result<Bytes, crate::Error>>| {
                // while it is judged, all of it is there under another name
                assert_eq!(files(&dir), ["file#1"]);
                let back: Vec<Bytes> = back.try_collect().await.expect("read");
                assert!(back.concat() == content);
                if approved { Ok(()) } else { Err("no") }
            };
            let stop = CancellationToken::new();
            let stream = futures::stream::iter(pieces.clone());
            let put = store.put_checked("dir/file", stream, &stop, check).await;
            match put {
                Ok(size) => assert!(approved && size == content.len() as u64),
                Err(error) => assert!(!approved && matches!(error, PutError::Source("no")), "{error:?}"),
            }
            let expected: &[&str] = if approved { &["file"] } else { &[] };
            assert_eq!(files(&dir), expected);
        }
        // and a stream that breaks off leaves the old one
        let broken = futures::stream::iter([Ok(Bytes::from_static(b"new")), Err("broken")]);
        let put = store.put("dir/file", broken, &CancellationToken::new()).await;
        assert!(matches!(put, Err(PutError::Source("broken"))));
        assert_eq!(files(&dir), ["file"]);
        assert_eq!(std::fs::read(dir.join("file")).expect("read").len(), content.len());
    }
}
