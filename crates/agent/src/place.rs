//! The store of a task, how its files are packed, and reading one through.

use std::path::Path;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use stateward_api::agent::{Failure, Place};
use stateward_api::etcd_backup::Compression;
use stateward_etcd::{Opened, Passing, Whole};
use stateward_store::{Error as StoreError, Key, Packing, Store, UnpackError, unpack};
use tokio::io::AsyncWriteExt;

use crate::Folders;
use crate::failure::{corrupt, failure, of_io, of_key, of_store, of_unpack};

/// A store and how its files are packed.
pub(crate) struct Opening {
    pub(crate) store: Store,
    pub(crate) packing: Packing,
    key: Option<Key>,
}

/// A file that was read through and is a good backup.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    pub(crate) whole: Whole,
    pub(crate) opened: Opened,
}

impl Proof {
    pub(crate) fn sha256(&self) -> String {
        hex(&self.whole.sha256)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Opening {
    pub(crate) fn new(place: &Place, folders: &Folders) -> Result<Self, Failure> {
        let store = Store::open(&place.store, &folders.store, &folders.claim).map_err(|error| of_store(&error))?;
        let key = match std::fs::read(folders.encryption.join("key")) {
            Ok(content) => Some(Key::read(&content).map_err(|error| of_key(&error))?),
            Err(_) if place.encrypted => {
                let message =
                    "the secret with the key for encryption has no key of that name: correct encryption.secretKeyRef";
                return Err(failure("KeyMissing", message, true));
            }
            Err(_) => None,
        };
        let packing = Packing {
            zstd: place.compression == Compression::Zstd,
            key: key.clone().filter(|_| place.encrypted),
        };
        Ok(Self { store, packing, key })
    }

    /// The unpacked content of a file.
    pub(crate) async fn content(
        &self,
        key: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, UnpackError<StoreError>>> + Send + use<>, Failure> {
        let pieces = self.store.get(key).await.map_err(|error| of_store(&error))?;
        Ok(unpack(pieces, self.key.clone()))
    }

    /// Reads a backup through: unpacked, hashed, opened; and writes what passes to a file where one is given.
    pub(crate) async fn read_through(&self, key: &str, into: Option<&Path>) -> Result<Proof, Failure> {
        let location = self.store.location(key);
        let mut pieces = std::pin::pin!(self.content(key).await?);
        let mut file = match into {
            Some(path) => {
                let file = tokio::fs::File::create(path).await;
                Some(file.map_err(|error| of_io(&error, &format!("writing {}", path.display())))?)
            }
            None => None,
        };
        let mut passing = Passing::new(true);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| of_unpack(&error, &location))?;
            if let Some(file) = &mut file {
                let written = file.write_all(&piece).await;
                written.map_err(|error| of_io(&error, "writing what is fetched"))?;
            }
            passing.take(&piece);
        }
        if let Some(file) = &mut file {
            file.flush()
                .await
                .map_err(|error| of_io(&error, "writing what is fetched"))?;
        }
        let (whole, opened) = passing.finish().map_err(|error| corrupt(&location, error))?;
        let opened = opened.ok_or_else(|| corrupt(&location, "it was not opened"))?;
        Ok(Proof { whole, opened })
    }
}
