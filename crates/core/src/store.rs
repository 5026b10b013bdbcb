//! Where backups are and how their files are packed: what the kinds of all engines have in common.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lenient::{empty_as_none, is_default, null_as_default};

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = crate::undescribed)]
pub enum StorageType {
    /// S3, or a store that speaks its protocol.
    S3,
    /// Azure Blob Storage.
    #[serde(rename = "ABS")]
    Abs,
    /// Google Cloud Storage.
    #[serde(rename = "GCS")]
    Gcs,
    /// Alibaba Cloud Object Storage Service.
    #[serde(rename = "OSS")]
    Oss,
    /// A folder on a claim.
    File,
    /// A word that is none of these; it can only come from objects written before the schema knew them.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// S3, or a store that speaks its protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Store {
    /// Bucket and key, as "mybucket/etcd.backup".
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
    /// Secret with the AWS files `credentials` and `config` (profile default). Not set: the identity of the pod.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub aws_secret: Option<String>,
    /// URL of a store that speaks the protocol of S3. Not set: AWS itself, in the region of `config`.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Address the bucket in the path of the URL, not in the host name; most compatible stores need it.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub force_path_style: bool,
}

/// Azure Blob Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbsStore {
    /// Container and key, as "mycontainer/etcd.backup".
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
    /// Secret with `storage-account`, `storage-key` and optionally `cloud`. Not set: the identity of the pod.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub abs_secret: Option<String>,
    /// URL of a store that speaks the protocol of Azure Blob Storage. Not set: Azure itself.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// Google Cloud Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GcsStore {
    /// Bucket and key, as "mybucket/etcd.backup".
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
    /// Secret with `access-token` or `credentials.json`. Not set: the identity of the pod.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub gcp_secret: Option<String>,
    /// URL of a store that speaks the protocol of Google Cloud Storage. Not set: Google itself.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// Alibaba Cloud Object Storage Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OssStore {
    /// Bucket and key, as "mybucket/etcd.backup".
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
    /// Secret with `accessKeyID` and `accessKeySecret`. Not set: the identity of the pod.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub oss_secret: Option<String>,
    /// URL of the region's endpoint. Not set: `http://oss-cn-hangzhou.aliyuncs.com`, as the old operator had it.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// A folder on a claim in the namespace of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileStore {
    /// The PersistentVolumeClaim that holds the files.
    #[serde(default, deserialize_with = "null_as_default")]
    pub claim_name: String,
    /// File below the root of the claim, as "etcd/etcd.backup".
    #[serde(default, deserialize_with = "null_as_default")]
    pub path: String,
}

/// One of the stores. Exactly one block is set; the schema refuses two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreBlocks {
    /// S3, or a store that speaks its protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Store>,
    /// Azure Blob Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abs: Option<AbsStore>,
    /// Google Cloud Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<GcsStore>,
    /// Alibaba Cloud Object Storage Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oss: Option<OssStore>,
    /// A folder on a claim in the namespace of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileStore>,
}

/// The one store that an object names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store<'a> {
    /// S3 and compatible.
    S3(&'a S3Store),
    /// Azure Blob Storage.
    Abs(&'a AbsStore),
    /// Google Cloud Storage.
    Gcs(&'a GcsStore),
    /// Alibaba Cloud Object Storage Service.
    Oss(&'a OssStore),
    /// A folder on a claim.
    File(&'a FileStore),
}

impl<'a> Store<'a> {
    /// The field for a secret that must be set, since what speaks for the pod would otherwise be sent to an endpoint that anybody
    /// can name. S3 and OSS sign requests and never send a key.
    pub fn needs_secret(&self) -> Option<&'static str> {
        let (endpoint, secret) = match self {
            Self::Abs(store) => (&store.endpoint, "absSecret"),
            Self::Gcs(store) => (&store.endpoint, "gcpSecret"),
            Self::S3(_) | Self::Oss(_) | Self::File(_) => return None,
        };
        (endpoint.is_some() && self.secret().is_none()).then_some(secret)
    }

    /// Its kind.
    pub fn storage_type(&self) -> StorageType {
        match self {
            Self::S3(_) => StorageType::S3,
            Self::Abs(_) => StorageType::Abs,
            Self::Gcs(_) => StorageType::Gcs,
            Self::Oss(_) => StorageType::Oss,
            Self::File(_) => StorageType::File,
        }
    }

    /// Its `path`, as written: bucket and key, or a file below the root of the claim.
    pub fn path(&self) -> &'a str {
        match self {
            Self::S3(store) => &store.path,
            Self::Abs(store) => &store.path,
            Self::Gcs(store) => &store.path,
            Self::Oss(store) => &store.path,
            Self::File(store) => &store.path,
        }
    }

    /// The secret with its credentials, where one is named.
    pub fn secret(&self) -> Option<&'a str> {
        match self {
            Self::S3(store) => store.aws_secret.as_deref(),
            Self::Abs(store) => store.abs_secret.as_deref(),
            Self::Gcs(store) => store.gcp_secret.as_deref(),
            Self::Oss(store) => store.oss_secret.as_deref(),
            Self::File(_) => None,
        }
    }
}

/// Why an endpoint of a store that is spoken to with a bearer token needs a secret.
pub fn token_message(secret: &str) -> String {
    format!(
        "an endpoint without {secret} would be sent the token of the pod's identity: set {secret}, or leave endpoint out"
    )
}

/// Why no store can be told from an object. Objects written before the schema had its rules can be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// None of the blocks.
    #[error("no store is given: set one of s3, abs, gcs, oss, file")]
    Missing,
    /// More than one.
    #[error("more than one store is given: keep one of s3, abs, gcs, oss, file")]
    Several,
    /// The block is not of the type that is named.
    #[error("the storage type does not name the block that is set: change one of them")]
    Mismatch,
}

impl StoreBlocks {
    /// The one store that is set, checked against the named type where there is one.
    pub fn store(&self, named: Option<StorageType>) -> Result<Store<'_>, StoreError> {
        let blocks = [
            self.s3.as_ref().map(Store::S3),
            self.abs.as_ref().map(Store::Abs),
            self.gcs.as_ref().map(Store::Gcs),
            self.oss.as_ref().map(Store::Oss),
            self.file.as_ref().map(Store::File),
        ];
        let mut set = blocks.into_iter().flatten();
        let store = set.next().ok_or(StoreError::Missing)?;
        if set.next().is_some() {
            return Err(StoreError::Several);
        }
        match named {
            Some(named) if named != store.storage_type() => Err(StoreError::Mismatch),
            _ => Ok(store),
        }
    }

    /// Whether no block is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How the file is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = crate::undescribed)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Zstandard.
    Zstd,
}

/// A key for encrypting before the upload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Encryption {
    /// Where the key is.
    #[serde(default, deserialize_with = "null_as_default")]
    pub secret_key_ref: SecretKey,
}

/// One key of a Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// The Secret.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// The key in it. Not set: `key`.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
