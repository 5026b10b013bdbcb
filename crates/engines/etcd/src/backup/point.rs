//! The newest good backup of an EtcdBackup: what a restore or a recovery may start from.

use crate::api::EtcdBackup;

use super::manifests::place;
use crate::cluster::{BackupPoint, ClusterId};

/// The newest backup that was proven, if there is one.
pub fn point(backup: &EtcdBackup) -> Option<BackupPoint> {
    let status = backup.status.as_ref()?;
    let record = status
        .backups
        .iter()
        .find(|record| record.verified.is_some() && record.completed_at.is_some())?;
    Some(BackupPoint {
        name: backup.metadata.name.clone()?,
        revision: record.revision,
        taken: record.completed_at.as_ref()?.0,
        place: place(&backup.spec.plan),
        location: record.location.clone(),
        sha256: record.sha256.clone(),
        cluster: ClusterId::from_hex(&record.cluster_id),
    })
}
