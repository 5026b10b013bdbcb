//! Two objects that write periodic backups to one place. Retention goes by the names in the store, so each would delete the
//! other's backups, and their streams of changes would mix. The older object keeps the place; the younger is refused
//! until the older is gone or one of them names another path. Backups that are made once may share a path.

use crate::api::EtcdBackup;
use crate::api::etcd_backup::EtcdBackupStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::store::Store;

use super::{Reason, Step, View, refuse, stop};

/// Another EtcdBackup with the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// Its namespace and name, as `namespace/name`.
    pub name: String,
    /// It was there first.
    pub is_older: bool,
}

/// The other object that writes periodic backups to the same place: the oldest of them.
pub fn sharer<'a>(backup: &EtcdBackup, others: impl IntoIterator<Item = &'a EtcdBackup>) -> Option<Sharer> {
    let own = place(backup)?;
    let shares = |other: &&EtcdBackup| other.metadata.uid != backup.metadata.uid && place(other).as_ref() == Some(&own);
    let oldest = others.into_iter().filter(shares).min_by_key(|other| age(other))?;
    let meta = &oldest.metadata;
    Some(Sharer {
        name: format!(
            "{}/{}",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        ),
        is_older: age(oldest) < age(backup),
    })
}

/// Whether two objects write periodic backups to one place.
pub fn share(one: &EtcdBackup, other: &EtcdBackup) -> bool {
    sharer(one, [other]).is_some()
}

/// Older objects sort first. Creation times have whole seconds, so that the name decides between two of one second.
fn age(backup: &EtcdBackup) -> (Option<Time>, Option<&String>, Option<&String>) {
    let meta = &backup.metadata;
    (
        meta.creation_timestamp.clone(),
        meta.namespace.as_ref(),
        meta.name.as_ref(),
    )
}

/// Where periodic backups of an object go, so that two of one place are equal, however it is written. `None`: it has none.
fn place(backup: &EtcdBackup) -> Option<[String; 4]> {
    let plan = &backup.spec.plan;
    if !plan.is_periodic() {
        return None;
    }
    let namespace = backup.metadata.namespace.as_deref().unwrap_or_default();
    let store = plan.store().ok()?;
    // As stores read it, without empty parts.
    let parts: Vec<&str> = store.path().split('/').filter(|part| !part.is_empty()).collect();
    // Buckets of a provider have one name for all its regions and accounts.
    let (kind, endpoint, within) = match store {
        Store::S3(store) => ("s3", host(&store.endpoint, ".amazonaws.com", namespace), ""),
        Store::Gcs(store) => ("gcs", host(&store.endpoint, ".googleapis.com", namespace), ""),
        Store::Oss(store) => ("oss", host(&store.endpoint, ".aliyuncs.com", namespace), ""),
        // A Secret names the account that the container is in, and two Secrets may name the same one.
        Store::Abs(store) if store.endpoint.is_none() => ("abs", String::new(), namespace),
        Store::Abs(store) => ("abs", host(&store.endpoint, "", namespace), ""),
        Store::File(store) => ("file", store.claim_name.clone(), namespace),
    };
    Some([kind.to_owned(), endpoint, within.to_owned(), parts.join("/")])
}

/// The host of an endpoint in one spelling; nothing for the provider itself, whose hosts end in this domain.
fn host(endpoint: &Option<String>, provider: &str, namespace: &str) -> String {
    let endpoint = endpoint.as_deref().unwrap_or_default().to_lowercase();
    let rest = endpoint.split("://").last().unwrap_or_default().trim_end_matches('/');
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_default = |port: &str| matches!(port, "80" | "443");
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if is_default(port) => (name, ""),
        Some((name, port)) => (name, port),
        None => (authority, ""),
    };
    let name = name.trim_end_matches('.');
    if name.is_empty() || (!provider.is_empty() && name.ends_with(provider)) {
        return String::new();
    }
    // A host without a dot is a Service of the same namespace, which has longer names as well.
    let name = match name.split_once(".svc") {
        Some((service, rest)) if rest.is_empty() || rest.starts_with('.') => service.to_owned(),
        _ if name.contains('.') => name.to_owned(),
        _ => format!("{name}.{namespace}"),
    };
    format!("{name}:{port}/{path}")
}

/// The younger of two waits, and nothing of it works on.
pub(super) fn refuse(view: &View<'_>, status: &mut EtcdBackupStatus) -> Option<Step> {
    let sharer = view.world.sharer.as_ref().filter(|sharer| sharer.is_older)?;
    let path = view.plan().store().map(|store| store.path()).unwrap_or_default();
    let message = format!(
        "EtcdBackup {} has been writing periodic backups to the path \"{path}\" for longer, and each would delete the other's: set another path in one of them, or delete one",
        sharer.name
    );
    let step = refuse::refuse(status, Reason::PathShared, &message);
    let working = view.world.agents.iter();
    let working = working.filter(|(_, agent)| agent.terminating.is_none() && !agent.is_over());
    let stops: Vec<_> = working.map(|(name, agent)| stop(name, agent)).collect();
    Some(step.with(stops))
}
