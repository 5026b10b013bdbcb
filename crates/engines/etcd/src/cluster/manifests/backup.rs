//! The EtcdBackups that a cluster keeps: the one of `spec.backup`, and one before each new minor version.

use crate::api::etcd_backup::{BackupPlan, BackupPolicy, ObjectName};
use crate::api::{EtcdBackup, EtcdBackupSpec, EtcdCluster, EtcdVersion, names};

use super::{ANNOTATION_METADATA, hash, metadata};

/// The EtcdBackup that `spec.backup` asks for.
pub fn kept_backup(cluster: &EtcdCluster) -> Option<EtcdBackup> {
    let plan = cluster.spec.backup.clone()?;
    Some(backup(cluster, names::kept_backup(cluster.name()), plan))
}

/// One backup before the upgrade to a version, beside the others in the same store.
pub fn upgrade_backup(cluster: &EtcdCluster, name: &str, version: &EtcdVersion) -> Option<EtcdBackup> {
    let mut plan = cluster.spec.backup.clone()?;
    plan.schedule = None;
    plan.suspend = false;
    plan.continuous = false;
    plan.deletion_policy = None; // the cluster that it belongs to may go; the way back must not
    plan.backup_policy = plan.backup_policy.map(|policy| BackupPolicy {
        timeout_in_second: policy.timeout_in_second,
        ..BackupPolicy::default()
    });
    let store = &mut plan.store;
    let paths = [
        store.s3.as_mut().map(|store| &mut store.path),
        store.abs.as_mut().map(|store| &mut store.path),
        store.gcs.as_mut().map(|store| &mut store.path),
        store.oss.as_mut().map(|store| &mut store.path),
        store.file.as_mut().map(|store| &mut store.path),
    ];
    for path in paths.into_iter().flatten() {
        *path = format!("{path}.before-{version}");
    }
    Some(backup(cluster, name.to_owned(), plan))
}

fn backup(cluster: &EtcdCluster, name: String, plan: BackupPlan) -> EtcdBackup {
    let spec = EtcdBackupSpec {
        cluster_ref: Some(ObjectName {
            name: cluster.name().to_owned(),
        }),
        plan,
        ..EtcdBackupSpec::default()
    };
    let mut metadata = metadata(cluster, name);
    metadata.annotations = Some([(ANNOTATION_METADATA.to_owned(), hash(&spec))].into());
    EtcdBackup {
        metadata,
        spec,
        status: None,
    }
}
