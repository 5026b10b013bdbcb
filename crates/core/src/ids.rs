//! What an object is known by: names come back, UIDs do not, and every write gives another resource version.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The UID of a Kubernetes object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub String);

impl Uid {
    /// The UID of an object; empty where it has none yet.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self(meta.uid.clone().unwrap_or_default())
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Its UID.
    pub uid: Uid,
    /// Its resource version.
    pub resource_version: String,
}

impl ObjectVersion {
    /// The version of an object as it was read.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            uid: Uid::of(meta),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}
