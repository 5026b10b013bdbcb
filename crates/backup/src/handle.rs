//! One open store: streams in and out in bounded memory.

use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Reason};
use crate::folder::{Staged, is_staged};
use crate::upload::Upload;

/// How long taking back what was sent may take. Kubernetes gives a pod 30 s to end.
pub(crate) const ABORT_PATIENCE: Duration = Duration::from_secs(10);
/// What a read from a folder brings at once.
const READ: usize = 1 << 20;
/// What S3 copies in one request at most.
const LARGEST_COPY: u64 = 5 << 30;
/// A staged file of a folder is another's upload under way unless it is this old.
const STALE: Duration = Duration::from_secs(3600);

/// A store that was opened, with the `path` it was opened for.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// The same without a signature over every byte, for what is read back and judged anyway.
    unsigned: Arc<dyn ObjectStore>,
    /// Lists by any prefix, not only by whole folders. Folders have none.
    pages: Option<Arc<dyn PaginatedListStore>>,
    bucket: String,
    key: String,
    folder: Option<PathBuf>,
}

/// A file in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key, without the bucket.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// When it was written, by the store's clock.
    pub modified: Timestamp,
}

/// Why a stream did not reach the store.
#[derive(Debug)]
pub enum PutError<E> {
    /// The stream itself ended in an error, or what was read back was not approved.
    Source(E),
    /// The store.
    Store(Error),
}

impl Store {
    pub(crate) fn new(
        objects: Arc<dyn ObjectStore>,
        pages: Option<Arc<dyn PaginatedListStore>>,
        bucket: String,
        key: String,
    ) -> Self {
        Self {
            unsigned: objects.clone(),
            objects,
            pages,
            bucket,
            key,
            folder: None,
        }
    }

    pub(crate) fn with_unsigned(mut self, unsigned: Arc<dyn ObjectStore>) -> Self {
        self.unsigned = unsigned;
        self
    }

    pub(crate) fn in_folder(mut self, folder: &FsPath) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// The key that the user's `path` names: without the bucket.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Bucket and key as users write them; for a folder the file below its root.
    pub fn location(&self, key: &str) -> String {
        if self.bucket.is_empty() {
            key.to_owned()
        } else {
            format!("{}/{key}", self.bucket)
        }
    }

    /// The key of a location, which must be in this bucket.
    pub fn key_of(&self, location: &str) -> Result<String, Error> {
        if self.bucket.is_empty() {
            return Ok(location.trim_start_matches('/').to_owned());
        }
        let key = location
            .strip_prefix(&self.bucket)
            .and_then(|rest| rest.strip_prefix('/'))
            .filter(|key| !key.is_empty());
        key.map(str::to_owned).ok_or_else(|| {
            let message = format!(
                "\"{location}\" is not in \"{}\", which the store block names",
                self.bucket
            );
            Error::new(Reason::StoreInvalid, message)
        })
    }

    fn path(&self, key: &str) -> Result<Path, Error> {
        let path = Path::parse(key).map_err(|error| {
            let message = format!("\"{key}\" cannot be the name of a file in a store: {error}");
            Error::new(Reason::StoreInvalid, message)
        })?;
        if path.as_ref() != key {
            let message = format!("\"{key}\" cannot be the name of a file in a store: write \"{path}\"");
            return Err(Error::new(Reason::StoreInvalid, message));
        }
        Ok(path)
    }

    fn error(&self, error: &object_store::Error, doing: &str, key: &str) -> Error {
        Error::of(error, doing, &self.location(key))
    }

    /// Writes a stream to a file in bounded memory. The file appears whole at the end or not at all: whatever goes
    /// wrong, and when told to stop, what was sent is taken back. Returns the bytes written.
    pub async fn put<E>(
        &self,
        key: &str,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send,
        stop: &CancellationToken,
    ) -> Result<u64, PutError<E>> {
        let nothing = |_| std::future::ready(Ok(()));
        self.write(key, pieces, stop, (&self.objects, nothing)).await
    }

    /// As [`Store::put`], and what is read back must be approved by `check`. In a folder the file has no name until then;
    /// other stores show it, and it is deleted again when it is not approved: send it to a key where nothing stood before,
    /// and [`Store::publish`] it.
    pub async fn put_checked<E, C>(
        &self,
        key: &str,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send,
        stop: &CancellationToken,
        check: impl FnOnce(BoxStream<'static, Result<Bytes, Error>>) -> C,
    ) -> Result<u64, PutError<E>>
    where
        C: Future<Output = Result<(), E>>,
    {
        self.write(key, pieces, stop, (&self.unsigned, check)).await
    }

    async fn write<E, C>(
        &self,
        key: &str,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send,
        stop: &CancellationToken,
        (objects, check): (
            &Arc<dyn ObjectStore>,
            impl FnOnce(BoxStream<'static, Result<Bytes, Error>>) -> C,
        ),
    ) -> Result<u64, PutError<E>>
    where
        C: Future<Output = Result<(), E>>,
    {
        let path = self.path(key).map_err(PutError::Store)?;
        match &self.folder {
            Some(root) => self.stage(root, key, pieces, stop, check).await,
            None => {
                self.send(Upload::new(objects.clone(), path), key, pieces, stop, check)
                    .await
            }
        }
    }

    async fn stage<E, C>(
        &self,
        root: &FsPath,
        key: &str,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send,
        stop: &CancellationToken,
        check: impl FnOnce(BoxStream<'static, Result<Bytes, Error>>) -> C,
    ) -> Result<u64, PutError<E>>
    where
        C: Future<Output = Result<(), E>>,
    {
        let failed = |error: std::io::Error| {
            let source = error.into();
            let error = object_store::Error::Generic {
                store: "folder",
                source,
            };
            PutError::Store(self.error(&error, "writing", key))
        };
        let work = async {
            let (staged, mut writing) = Staged::begin(&root.join(key)).map_err(failed)?;
            let mut pieces = std::pin::pin!(pieces);
            let mut size = 0;
            while let Some(piece) = pieces.next().await {
                let piece = piece.map_err(PutError::Source)?;
                size += piece.len() as u64;
                if !writing.take(piece).await {
                    break;
                }
            }
            let written = writing.end().await.map_err(failed)?;
            // What is read back need not wait for the disk.
            let back = read_file(staged.path.clone(), self.location(key));
            let (synced, checked) = tokio::join!(written.sync(), check(back));
            synced.map_err(failed)?;
            checked.map_err(PutError::Source)?;
            Ok((staged, size))
        };
        let (staged, size) = tokio::select! {
            done = work => done?,
            () = stop.cancelled() => return Err(PutError::Store(Error::interrupted())),
        };
        let root = root.to_owned();
        let published = tokio::task::spawn_blocking(move || staged.publish(&root)).await;
        published.map_err(|ended| failed(ended.into()))?.map_err(failed)?;
        Ok(size)
    }

    async fn send<E, C>(
        &self,
        mut upload: Upload,
        key: &str,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send,
        stop: &CancellationToken,
        check: impl FnOnce(BoxStream<'static, Result<Bytes, Error>>) -> C,
    ) -> Result<u64, PutError<E>>
    where
        C: Future<Output = Result<(), E>>,
    {
        let wrong = |error: object_store::Error| PutError::Store(self.error(&error, "writing", key));
        let stopped = || PutError::Store(Error::interrupted());
        let mut pieces = std::pin::pin!(pieces);
        let moved = async {
            while let Some(piece) = pieces.next().await {
                upload.take(piece.map_err(PutError::Source)?).await.map_err(wrong)?;
            }
            upload.last_part().await.map_err(wrong)
        };
        let moved = tokio::select! {
            moved = moved => moved,
            () = stop.cancelled() => Err(stopped()),
        };
        if let Err(error) = moved {
            upload.abort().await;
            return Err(error);
        }
        let path = upload.path().clone();
        let size = upload.complete().await.map_err(wrong)?;
        let back = read_object(self.objects.clone(), path, self.location(key));
        let checked = tokio::select! {
            checked = check(back) => checked.map_err(PutError::Source),
            () = stop.cancelled() => Err(stopped()),
        };
        if let Err(error) = checked {
            // What could not be proven must not look like a backup.
            let place = self.location(key);
            match tokio::time::timeout(ABORT_PATIENCE, self.delete(key)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!("{place} is not proven and could not be deleted: {error}"),
                Err(_) => tracing::warn!("{place} is not proven and could not be deleted within {ABORT_PATIENCE:?}"),
            }
            return Err(error);
        }
        Ok(size)
    }

    /// Gives a file that is proven its name, and takes the other one away. What stood under that name is replaced in one
    /// step: a reader finds the old file or the new one.
    pub async fn publish(&self, from: &str, to: &str) -> Result<(), Error> {
        let (source, target) = (self.path(from)?, self.path(to)?);
        let wrong = |error: object_store::Error| self.error(&error, "writing", to);
        if self.folder.is_some() {
            return self.objects.rename(&source, &target).await.map_err(wrong);
        }
        let size = self.head(from).await?.size;
        let copied = match size {
            0..=LARGEST_COPY => self.objects.copy(&source, &target).await.map_err(wrong),
            _ => Err(Error::new(Reason::StoreFailed, "it is too large to be copied at once")),
        };
        if let Err(error) = copied {
            tracing::info!(
                "{} is sent again, since the store did not copy it: {error}",
                self.location(to)
            );
            self.send_again(from, target, to).await?;
        }
        // Azure answers before a copy is complete where it cannot make it at once.
        let there = self.head(to).await?.size;
        if there != size {
            let message = format!("{} has {there} bytes where {size} were copied", self.location(to));
            return Err(Error::new(Reason::StoreFailed, message));
        }
        if let Err(error) = self.delete(from).await {
            tracing::warn!(
                "{} is not needed any more and could not be deleted: {error}",
                self.location(from)
            );
        }
        Ok(())
    }

    /// Copies a file through this machine.
    async fn send_again(&self, from: &str, target: Path, to: &str) -> Result<(), Error> {
        let mut pieces = self.get(from).await?;
        let mut upload = Upload::new(self.unsigned.clone(), target);
        let wrong = |error: object_store::Error| self.error(&error, "writing", to);
        let moved = async {
            while let Some(piece) = pieces.next().await {
                upload.take(piece?).await.map_err(wrong)?;
            }
            upload.last_part().await.map_err(wrong)
        };
        match moved.await {
            Ok(()) => upload.complete().await.map(|_| ()).map_err(wrong),
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    /// Whether it is a folder, in which a file has no name until it is approved.
    pub fn is_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Writes a small file at once.
    pub async fn put_small(&self, key: &str, content: Bytes) -> Result<(), Error> {
        let path = self.path(key)?;
        let put = self.objects.put(&path, PutPayload::from_bytes(content)).await;
        put.map(|_| ()).map_err(|error| self.error(&error, "writing", key))
    }

    /// Reads a file as a stream.
    pub async fn get(&self, key: &str) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        let path = self.path(key)?;
        let place = self.location(key);
        if let Some(file) = self.on_disk(key) {
            let found = self.objects.head(&path).await;
            found.map_err(|error| self.error(&error, "reading", key))?;
            return Ok(read_file(file, place));
        }
        let got = self.objects.get(&path).await;
        let got = got.map_err(|error| self.error(&error, "reading", key))?;
        let wrong = move |error| Error::of(&error, "reading", &place);
        Ok(got.into_stream().map_err(wrong).boxed())
    }

    /// What is known of a file.
    pub async fn head(&self, key: &str) -> Result<Entry, Error> {
        let path = self.path(key)?;
        let meta = self
            .objects
            .head(&path)
            .await
            .map_err(|error| self.error(&error, "looking for", key))?;
        Ok(entry(&meta))
    }

    /// Every file whose key begins with a prefix, in no particular order.
    pub fn list(&self, prefix: &str) -> BoxStream<'static, Result<Entry, Error>> {
        let place = self.location(prefix);
        let found = match &self.pages {
            Some(pages) => by_pages(pages.clone(), prefix.to_owned()),
            None => self.by_folder(prefix),
        };
        let wrong = move |error: object_store::Error| Error::of(&error, "listing", &place);
        found.map_err(wrong).map_ok(|meta| entry(&meta)).boxed()
    }

    fn by_folder(&self, prefix: &str) -> BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
        let objects = self.objects.clone();
        let prefix = prefix.to_owned();
        let listed = async move {
            let (parent, _) = prefix.rsplit_once('/').unwrap_or(("", ""));
            let found = objects.list_with_delimiter(Some(&Path::parse(parent)?)).await?;
            let fits = move |meta: &object_store::ObjectMeta| meta.location.as_ref().starts_with(&prefix);
            let fitting: Vec<_> = found.objects.into_iter().filter(fits).map(Ok).collect();
            Ok::<_, object_store::Error>(futures::stream::iter(fitting))
        };
        futures::stream::once(listed).try_flatten().boxed()
    }

    /// Deletes a file. One that is not there is deleted already.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        let path = self.path(key)?;
        match self.objects.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => match self.error(&error, "deleting", key) {
                gone if gone.reason == Reason::BackupMissing => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Where a file is on this machine, for stores that are folders.
    pub fn on_disk(&self, key: &str) -> Option<PathBuf> {
        self.path(key).ok()?;
        Some(self.folder.as_ref()?.join(key))
    }

    /// Removes what an upload to this folder left behind that was killed with its machine: staged files of this path
    /// that nobody has written to for long. Other stores have rules of their own for parts without an end.
    pub fn sweep(&self) {
        let Some(folder) = &self.folder else { return };
        let whole = folder.join(&self.key);
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name().and_then(|name| name.to_str())) else {
            return;
        };
        let now = SystemTime::now();
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let staged = file.to_str().is_some_and(|file| is_staged(file, name));
            let age = entry.metadata().and_then(|meta| meta.modified()).ok();
            let age = age.and_then(|modified| now.duration_since(modified).ok());
            if staged && age.is_some_and(|age| age > STALE) {
                tracing::info!("removing {}, which an upload left behind", entry.path().display());
                let _best_effort = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// A file of a folder, opened when it is first asked for. object_store would read it in pieces of 8 KiB.
fn read_file(file: PathBuf, place: String) -> BoxStream<'static, Result<Bytes, Error>> {
    let opened = async move { tokio::fs::File::open(file).await };
    let pieces = futures::stream::once(opened)
        .map_ok(|file| tokio_util::io::ReaderStream::with_capacity(file, READ))
        .try_flatten();
    let wrong = move |error| Error::new(Reason::StoreFailed, format!("reading {place}: {error}"));
    pieces.map_err(wrong).boxed()
}

/// A file of a store, asked for when it is first polled: in one stream, which MinIO serves faster than ranges side by side.
fn read_object(objects: Arc<dyn ObjectStore>, path: Path, place: String) -> BoxStream<'static, Result<Bytes, Error>> {
    let opened = async move { objects.get(&path).await.map(object_store::GetResult::into_stream) };
    let wrong = move |error: object_store::Error| Error::of(&error, "reading", &place);
    futures::stream::once(opened).try_flatten().map_err(wrong).boxed()
}

fn by_pages(
    pages: Arc<dyn PaginatedListStore>,
    prefix: String,
) -> BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
    let start = Some(PaginatedListOptions::default());
    let listed = futures::stream::try_unfold(start, move |options| {
        let (pages, prefix) = (pages.clone(), prefix.clone());
        async move {
            let Some(options) = options else { return Ok(None) };
            let page = pages.list_paginated(Some(&prefix), options).await?;
            let next = page.page_token.map(|token| PaginatedListOptions {
                page_token: Some(token),
                ..PaginatedListOptions::default()
            });
            let found = futures::stream::iter(page.result.objects.into_iter().map(Ok));
            Ok::<_, object_store::Error>(Some((found, next)))
        }
    });
    listed.try_flatten().boxed()
}

fn entry(meta: &object_store::ObjectMeta) -> Entry {
    Entry {
        key: meta.location.as_ref().to_owned(),
        size: meta.size,
        modified: Timestamp::from_millisecond(meta.last_modified.timestamp_millis()).unwrap_or(Timestamp::UNIX_EPOCH),
    }
}

#[cfg(test)]
mod tests {
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn what_stood_there_stays_until_the_new_one_is_proven() {
        let root = tempfile::tempdir().expect("a folder");
        let memory = || Store::new(Arc::new(InMemory::new()), None, "bucket".into(), "etcd.backup".into());
        let local = LocalFileSystem::new_with_prefix(root.path()).expect("a store");
        let folder = Store::new(Arc::new(local), None, String::new(), "etcd.backup".into()).in_folder(root.path());
        for store in [memory(), folder] {
            // given a good file
            let piece =
                |text: &'static str| futures::stream::iter([Ok::<_, &str>(Bytes::from_static(text.as_bytes()))]);
            let stop = CancellationToken::new();
            let read = async |key: &str| {
                let pieces: Vec<Bytes> = store.get(key).await.ok()?.try_collect().await.expect("read");
                Some(pieces.concat())
            };
            store.put("etcd.backup", piece("good"), &stop).await.expect("written");
            // when another one is not approved
            let refused = async |_| Err("not what was sent");
            let staged = crate::names::unproven("etcd.backup", "u-1");
            let put = store.put_checked(&staged, piece("bad"), &stop, refused).await;
            // then the good one is there, and nothing else
            assert!(matches!(put, Err(PutError::Source(_))));
            assert_eq!(read("etcd.backup").await.as_deref(), Some(&b"good"[..]));
            assert_eq!(read(&staged).await, None);
            // when one is approved, then it takes the place when it is published, and not before
            let approved = async |_| Ok(());
            let put = store.put_checked(&staged, piece("better"), &stop, approved).await;
            assert_eq!(put.expect("written"), 6);
            assert_eq!(read("etcd.backup").await.as_deref(), Some(&b"good"[..]));
            store.publish(&staged, "etcd.backup").await.expect("published");
            assert_eq!(read("etcd.backup").await.as_deref(), Some(&b"better"[..]));
            assert_eq!(read(&staged).await, None);
        }
    }

    /// A store that cannot copy.
    #[tokio::test]
    async fn what_a_store_cannot_copy_is_sent_again() {
        let store = Store::new(Arc::new(InMemory::new()), None, "bucket".into(), "k".into());
        let content: Vec<Result<Bytes, &str>> = (0..40).map(|n| Ok(Bytes::from(vec![n; 1 << 19]))).collect();
        let stop = CancellationToken::new();
        let pieces = futures::stream::iter(content.clone());
        store.put("from", pieces, &stop).await.expect("written");
        store.send_again("from", Path::from("to"), "to").await.expect("sent");
        let got: Vec<Bytes> = store.get("to").await.expect("there").try_collect().await.expect("read");
        let sent: Vec<Bytes> = content.into_iter().flatten().collect();
        assert!(got.concat() == sent.concat());
    }
}
