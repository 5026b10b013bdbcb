//! An upload to an object store under way: fixed parts, a few at once, and nothing to be seen of them until the end.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, Result};
use tokio::task::JoinSet;

use crate::handle::ABORT_PATIENCE;

/// Size of a part. S3 takes 10,000 of them, of no less than 5 MiB: 60 GB, far beyond any etcd.
const PART: usize = 6 << 20;
/// Parts under way at once; with the one being filled this bounds the memory of an upload.
const UNDER_WAY: usize = 3;

pub(crate) struct Upload {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    /// None until the first part is full: what fits in one part is written at once.
    multipart: Option<Box<dyn MultipartUpload>>,
    under_way: JoinSet<Result<()>>,
    /// The part that is being filled, as the pieces came, and its size.
    part: Vec<Bytes>,
    filled: usize,
    written: u64,
}

impl Upload {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self {
            objects,
            path,
            multipart: None,
            under_way: JoinSet::new(),
            part: Vec::new(),
            filled: 0,
            written: 0,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) async fn take(&mut self, mut piece: Bytes) -> Result<()> {
        self.written += piece.len() as u64;
        while !piece.is_empty() {
            let fits = piece.split_to(piece.len().min(PART - self.filled));
            self.filled += fits.len();
            self.part.push(fits);
            if self.filled == PART {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        let part = self.filled_part();
        while self.under_way.len() >= UNDER_WAY {
            self.one_done().await?;
        }
        if self.multipart.is_none() {
            self.multipart = Some(self.objects.put_multipart(&self.path).await?);
        }
        if let Some(multipart) = &mut self.multipart {
            self.under_way.spawn(multipart.put_part(part));
        }
        Ok(())
    }

    fn filled_part(&mut self) -> PutPayload {
        self.filled = 0;
        std::mem::take(&mut self.part).into_iter().collect()
    }

    async fn one_done(&mut self) -> Result<()> {
        match self.under_way.join_next().await {
            None => Ok(()),
            Some(Ok(done)) => done,
            Some(Err(source)) => Err(object_store::Error::JoinError { source }),
        }
    }

    /// Sends what is left, and waits for everything that is under way.
    pub(crate) async fn last_part(&mut self) -> Result<()> {
        if self.multipart.is_some() && !self.part.is_empty() {
            self.send().await?;
        }
        while !self.under_way.is_empty() {
            self.one_done().await?;
        }
        Ok(())
    }

    /// The file appears. Returns its size.
    pub(crate) async fn complete(mut self) -> Result<u64> {
        let done = if let Some(multipart) = &mut self.multipart {
            multipart.complete().await.map(|_| ())
        } else {
            let whole = self.filled_part();
            self.objects.put(&self.path, whole).await.map(|_| ())
        };
        let written = self.written;
        if done.is_err() {
            self.abort().await;
        }
        done.map(|()| written)
    }

    /// Takes back what was sent.
    pub(crate) async fn abort(mut self) {
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
