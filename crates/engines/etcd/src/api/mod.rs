//! The custom resources of Stateward: `EtcdCluster`, `EtcdBackup` and `EtcdRestore` of the group
//! `etcd.database.coreos.com/v1beta2`, the API of the CoreOS etcd-operator with new optional fields on top.
//!
//! Types, defaults, validation rules and names. No I/O, no clock, no randomness.
//!
//! Reading is lenient, as objects written by compiled clients of the old API carry empty values for what is not set:
//! an empty string, a null and (where the old API has an object) an empty object all read as "unset".

#![allow(clippy::duplicated_attributes, reason = "kube's printcolumn(...) repeats type_")]

pub mod agent;
pub mod crds;
pub mod etcd_backup;
pub mod etcd_cluster;
pub mod etcd_restore;
pub mod names;
pub mod validate;
pub mod version;

mod owned_flags;
mod rules;

pub use etcd_backup::{EtcdBackup, EtcdBackupSpec, EtcdBackupStatus};
pub use etcd_cluster::{EtcdCluster, EtcdClusterSpec, EtcdClusterStatus};
pub use etcd_restore::{EtcdRestore, EtcdRestoreSpec, EtcdRestoreStatus};
pub use version::EtcdVersion;

/// The API group of all kinds here.
pub const GROUP: &str = "etcd.database.coreos.com";
/// The one served and stored version.
pub const VERSION: &str = "v1beta2";
/// How many members an EtcdCluster can have.
pub const SIZES: std::ops::RangeInclusive<i32> = 1..=7;
/// The image that members run when `spec.repository` is not set; the tag is `v<version>`.
pub const DEFAULT_REPOSITORY: &str = "quay.io/coreos/etcd";
/// The etcd version of a new cluster whose `spec.version` is not set. A cluster that runs keeps its version when a
/// later Stateward has another default: see [`EtcdCluster::version`].
pub const DEFAULT_VERSION: &str = "3.6.16";
