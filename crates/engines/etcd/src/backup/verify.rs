//! `verify: Restore`: after the upload another pod restores the backup into a scratch member and compares. Only then has
//! the attempt succeeded, and only then may older backups go. A proof that fails fails the attempt: the next one takes a new
//! backup.

use crate::api::agent::Proven;
use crate::api::etcd_backup::{BackupPlan, BackupRecord, EtcdBackupStatus, Verify};

use super::outcome::RECORDS;
use super::{Effect, Reason, View, tell};

/// Records of unproven backups at most, so that they leave room for the proven ones.
const UNPROVEN: usize = RECORDS / 2;

/// Whether a proof by restoring is asked for.
pub(super) fn is_asked(view: &View<'_>) -> bool {
    view.plan().verify == Some(Verify::Restore)
}

/// A backup is proven in the way that is asked for now. One that was only read back while `verify` was `Check` does not count
/// when a restore is asked for again: it must not push out one that was restored.
pub(super) fn proven_as_asked(record: &BackupRecord, plan: &BackupPlan) -> bool {
    match plan.verify {
        Some(Verify::Restore) => record.verified == Some(Verify::Restore),
        Some(Verify::Check) | None => record.verified.is_some(),
    }
}

/// The newest backup was restored and is the same. It takes the place of others with its name.
pub(super) fn proven(view: &View<'_>, status: &mut EtcdBackupStatus, proof: &Proven) -> Option<Effect> {
    let mut records = std::mem::take(&mut status.backups).into_iter();
    if let Some(mut record) = records.next() {
        record.verified = Some(proof.verified);
        record.keys = Some(proof.keys);
        record.key_hash.clone_from(&proof.key_hash);
        record.unproven_at.clear();
        let kept = |old: &BackupRecord| old.location != record.location && !proof.deleted.contains(&old.location);
        status.backups = records.filter(kept).collect();
        status.backups.insert(0, record);
    }
    bound(view, status);
    let problem = &proof.retention_problem;
    (!problem.is_empty()).then(|| tell(true, Reason::RetentionFailed, problem.clone()))
}

/// The newest backup could not be proven: nothing may start from it by itself.
pub(super) fn unproven(status: &mut EtcdBackupStatus) {
    if let Some(record) = status.backups.first_mut() {
        record.verified = None;
    }
}

/// Forgets the oldest records beyond what is kept. Unproven ones are counted apart, so that they push out no proven one.
pub(super) fn bound(view: &View<'_>, status: &mut EtcdBackupStatus) {
    let most = view.plan().max_backups().and_then(|most| usize::try_from(most).ok());
    let most = most.filter(|most| *most > 0).unwrap_or(RECORDS);
    let (mut unproven, mut proven) = (0, 0);
    let all = status.backups.iter();
    let failed = all
        .filter(|record| !proven_as_asked(record, view.plan()))
        .count()
        .min(most.min(UNPROVEN));
    status.backups.retain(|record| {
        let (count, limit) = match proven_as_asked(record, view.plan()) {
            false => (&mut unproven, failed),
            true => (&mut proven, most.min(RECORDS - failed)),
        };
        *count += 1;
        *count <= limit
    });
}
