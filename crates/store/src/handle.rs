//! One open store: streams in and out in bounded memory.

use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Reason};

/// Size of a part of an upload. S3 takes 10,000 of them: 80 GB, far beyond any etcd.
const PART: usize = 8 << 20;
/// Parts under way at once; with the one being filled this bounds the memory of an upload.
const UNDER_WAY: usize = 3;
/// How long the clean-up after a broken upload may take. Kubernetes gives a pod 30 s to end.
const ABORT_PATIENCE: Duration = Duration::from_secs(10);
/// What a read from a folder brings at once.
const READ: usize = 1 << 20;
/// A staged file of a folder is another's upload under way unless it is this old.
const STALE: Duration = Duration::from_secs(3600);

/// A store that was opened, with the `path` it was opened for.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
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
    /// The stream itself ended in an error.
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
            objects,
            pages,
            bucket,
            key,
            folder: None,
        }
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
        let path = self.path(key).map_err(PutError::Store)?;
        let mut pieces = std::pin::pin!(pieces);
        let mut upload = Upload {
            store: self,
            key,
            path,
            multipart: None,
            under_way: JoinSet::new(),
            part: BytesMut::new(),
            written: 0,
        };
        let moved = async {
            while let Some(piece) = pieces.next().await {
                upload
                    .take(piece.map_err(PutError::Source)?)
                    .await
                    .map_err(PutError::Store)?;
            }
            upload.last_part().await.map_err(PutError::Store)
        };
        let moved = tokio::select! {
            moved = moved => moved,
            () = stop.cancelled() => Err(PutError::Store(Error::interrupted())),
        };
        match moved {
            Ok(()) => upload.complete().await.map_err(PutError::Store),
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
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
        let got = self
            .objects
            .get(&path)
            .await
            .map_err(|error| self.error(&error, "reading", key))?;
        let place = self.location(key);
        if matches!(got.payload, GetResultPayload::File(..)) {
            // object_store reads files in pieces of 8 KiB, each on another thread.
            let GetResultPayload::File(file, _) = got.payload else {
                return Err(Error::new(Reason::StoreFailed, "not a file"));
            };
            let file = tokio::fs::File::from_std(file);
            let pieces = tokio_util::io::ReaderStream::with_capacity(file, READ);
            let pieces =
                pieces.map_err(move |error| Error::new(Reason::StoreFailed, format!("reading {place}: {error}")));
            return Ok(pieces.boxed());
        }
        let pieces = got.into_stream();
        Ok(pieces
            .map_err(move |error| Error::of(&error, "reading", &place))
            .boxed())
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

/// Whether a file is object_store's staging of a file that begins with a name: a `#` and digits at the end.
fn is_staged(file: &str, name: &str) -> bool {
    let digits = |suffix: &str| !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit());
    file.starts_with(name) && file.rsplit_once('#').is_some_and(|(_, suffix)| digits(suffix))
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

/// An upload under way: fixed parts, a few at once.
struct Upload<'a> {
    store: &'a Store,
    key: &'a str,
    path: Path,
    /// None until the first part is full: what fits in one part is written at once.
    multipart: Option<Box<dyn MultipartUpload>>,
    under_way: JoinSet<object_store::Result<()>>,
    part: BytesMut,
    written: u64,
}

impl Upload<'_> {
    async fn take(&mut self, mut piece: Bytes) -> Result<(), Error> {
        self.written += piece.len() as u64;
        while !piece.is_empty() {
            if self.part.capacity() == 0 {
                self.part.reserve(PART);
            }
            let fits = piece.split_to(piece.len().min(PART - self.part.len()));
            self.part.extend_from_slice(&fits);
            if self.part.len() == PART {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), Error> {
        let part = std::mem::take(&mut self.part).freeze();
        while self.under_way.len() >= UNDER_WAY {
            self.one_done().await?;
        }
        if self.multipart.is_none() {
            let begun = self.store.objects.put_multipart(&self.path).await;
            self.multipart = Some(begun.map_err(|error| self.store.error(&error, "writing", self.key))?);
        }
        if let Some(multipart) = &mut self.multipart {
            self.under_way.spawn(multipart.put_part(PutPayload::from_bytes(part)));
        }
        Ok(())
    }

    async fn one_done(&mut self) -> Result<(), Error> {
        match self.under_way.join_next().await {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(self.store.error(&error, "writing", self.key)),
            Some(Err(panicked)) => Err(Error::new(Reason::StoreFailed, format!("writing a part: {panicked}"))),
        }
    }

    async fn last_part(&mut self) -> Result<(), Error> {
        if self.multipart.is_some() && !self.part.is_empty() {
            self.send().await?;
        }
        while !self.under_way.is_empty() {
            self.one_done().await?;
        }
        Ok(())
    }

    async fn complete(mut self) -> Result<u64, Error> {
        let done = match &mut self.multipart {
            Some(multipart) => multipart.complete().await.map(|_| ()),
            None => {
                let whole = PutPayload::from_bytes(std::mem::take(&mut self.part).freeze());
                self.store.objects.put(&self.path, whole).await.map(|_| ())
            }
        };
        match done {
            Ok(()) => Ok(self.written),
            Err(error) => {
                let error = self.store.error(&error, "writing", self.key);
                self.abort().await;
                Err(error)
            }
        }
    }

    async fn abort(mut self) {
        self.under_way.shutdown().await;
        if let Some(mut multipart) = self.multipart.take() {
            match tokio::time::timeout(ABORT_PATIENCE, multipart.abort()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!("the parts sent so far could not be taken back: {error}"),
                Err(_) => tracing::warn!("the parts sent so far could not be taken back within {ABORT_PATIENCE:?}"),
            }
        }
    }
}
