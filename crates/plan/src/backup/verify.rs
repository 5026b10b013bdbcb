//! `verify: Restore`: after the upload another pod restores the backup into a scratch member and compares. Only then has
//! the attempt succeeded. A proof that fails fails the attempt: the next one takes a new backup.

use stateward_api::agent::Proven;
use stateward_api::etcd_backup::EtcdBackupStatus;

/// The newest backup was restored and is the same.
pub(super) fn proven(status: &mut EtcdBackupStatus, proof: &Proven) {
    if let Some(record) = status.backups.first_mut() {
        record.verified = Some(proof.verified);
        record.keys = Some(proof.keys);
        record.key_hash.clone_from(&proof.key_hash);
    }
}

/// The newest backup could not be proven: nothing may start from it by itself.
pub(super) fn unproven(status: &mut EtcdBackupStatus) {
    if let Some(record) = status.backups.first_mut() {
        record.verified = None;
    }
}
