//! The custom resources: MySQLCluster of `mysql.stateward.dev/v1alpha1`, its defaults and what is refused.

mod cluster;
pub mod config;
pub mod crds;
mod pod;
mod rules;
mod status;
pub mod validate;
pub mod version;

pub use cluster::{
    Acks, Auth, AutoTls, CloneFrom, ClonePolicy, Config, Database, Durability, Errant, Failover, MySQLCluster,
    MySQLClusterSpec, PrimaryPolicy, Reads, Retain, Storage, TlsPolicy, Update, WhenNoAcker,
};
pub use pod::PodPolicy;
pub use status::{
    AppliedConfig, BootstrapRecord, Expelled, FailoverRecord, MemberHealth, MemberRole, MemberStatus,
    MySQLClusterStatus, PasswordRecord, PendingRecord, Phase, QuarantineRecord, SwitchoverRecord, TlsRecord,
};
pub use version::MySQLVersion;

/// The API group of all kinds here.
pub const GROUP: &str = "mysql.stateward.dev";
/// The one served and stored version.
pub const VERSION: &str = "v1alpha1";
/// How many members a MySQLCluster can have.
pub const SIZES: std::ops::RangeInclusive<i32> = 1..=9;
/// The image that members run when `spec.repository` is not set; the tag is the version.
pub const DEFAULT_REPOSITORY: &str = "docker.io/library/mysql";
/// The version of a new cluster whose `spec.version` is not set.
pub const DEFAULT_VERSION: &str = "9.7.4";
