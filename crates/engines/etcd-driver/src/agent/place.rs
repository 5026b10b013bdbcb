//! The store of a task, how its files are packed, and reading one through.

use crate::client::{Passing, Sound};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use stateward_backup::{Error as StoreError, Key, Packing, Store, UnpackError, unpack};
use stateward_etcd::api::agent::{Failure, FailureReason, Place};
use stateward_etcd::api::etcd_backup::Compression;

use crate::agent::Folders;
use crate::agent::failure::{corrupt, failure, interrupted, of_key, of_store, of_unpack};

/// A store and how its files are packed.
pub(crate) struct Opening {
    pub(crate) store: Store,
    pub(crate) packing: Packing,
    key: Option<Key>,
}

impl Opening {
    pub(crate) fn new(place: &Place, folders: &Folders) -> Result<Self, Failure> {
        let store = Store::open(&place.store, &folders.store, &folders.claim).map_err(|error| of_store(&error))?;
        let key = match std::fs::read(folders.encryption.join("key")) {
            Ok(content) => Some(Key::read(&content).map_err(|error| of_key(&error))?),
            Err(_) if place.encrypted => {
                let message =
                    "the secret with the key for encryption has no key of that name: correct encryption.secretKeyRef";
                return Err(failure(FailureReason::KeyMissing, message, true));
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
    pub(crate) async fn content(&self, key: &str) -> Result<impl Content + use<>, Failure> {
        let pieces = self.store.get(key).await.map_err(|error| of_store(&error))?;
        Ok(self.unpacked(pieces))
    }

    /// The unpacked content of what is read.
    pub(crate) fn unpacked(&self, pieces: BoxStream<'static, Result<Bytes, StoreError>>) -> impl Content + use<> {
        unpack(pieces, self.key.clone())
    }

    /// Reads a backup through: unpacked, hashed, opened.
    pub(crate) async fn read_through(&self, key: &str) -> Result<Sound, Failure> {
        self.judge(key, self.content(key).await?).await
    }

    /// Hashes and opens what is read of a file, beside the reading.
    pub(crate) async fn judge(&self, key: &str, content: impl Content) -> Result<Sound, Failure> {
        let location = self.store.location(key);
        let mut pieces = std::pin::pin!(content);
        let mut passing = Passing::aside();
        while let Some(piece) = pieces.next().await {
            passing.take(piece.map_err(|error| of_unpack(&error, &location))?).await;
        }
        let sound = passing.finish().await.map_err(|ended| interrupted(&ended))?;
        sound.map_err(|error| corrupt(&location, error))
    }
}

/// The unpacked content of a file, as it comes.
pub(crate) trait Content: Stream<Item = Result<Bytes, UnpackError<StoreError>>> + Send {}
impl<S: Stream<Item = Result<Bytes, UnpackError<StoreError>>> + Send> Content for S {}
