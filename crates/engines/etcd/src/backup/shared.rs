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

/// Where periodic backups of an object go, so that two of one place are equal. `None`: it has none.
fn place(backup: &EtcdBackup) -> Option<[String; 4]> {
    let plan = &backup.spec.plan;
    if !plan.is_periodic() {
        return None;
    }
    let namespace = backup.metadata.namespace.clone().unwrap_or_default();
    let store = plan.store().ok()?;
    let path = store.path().trim_start_matches('/').to_owned();
    let (kind, endpoint, within) = match store {
        Store::S3(store) => ("s3", store.endpoint.as_deref(), None),
        Store::Gcs(store) => ("gcs", store.endpoint.as_deref(), None),
        Store::Oss(store) => ("oss", store.endpoint.as_deref(), None),
        // The secret names the account that the container is in.
        Store::Abs(store) => {
            let secret = store.abs_secret.as_deref().unwrap_or_default();
            ("abs", store.endpoint.as_deref(), Some(format!("{namespace}/{secret}")))
        }
        Store::File(store) => ("file", None, Some(format!("{namespace}/{}", store.claim_name))),
    };
    let endpoint = endpoint.unwrap_or_default().trim_end_matches('/').to_lowercase();
    let host = endpoint.split("://").last().unwrap_or_default();
    // A host without a dot is a Service of the same namespace.
    let local = !host.is_empty() && !host.contains('.');
    let within = within.or_else(|| local.then_some(namespace)).unwrap_or_default();
    Some([kind.to_owned(), endpoint, within, path])
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
