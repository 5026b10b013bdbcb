//! EtcdRestores that can be followed: the user's, and that of a recovery from quorum loss. Chapters share this.

use std::time::Duration;

use crate::api::etcd_restore::RestoreSource;

use super::facts::cannot_read;
use super::record::{Record, RestoreStep, Restoring};
use super::world::{BackupPoint, MemberName, RestoreRequest, Uid};
use super::{Effect, LATER, Note, Reason, Step, View, Work};

/// Why pods that are made now could not read a backup.
pub(super) fn too_new(view: &View<'_>, source: &RestoreSource) -> Option<String> {
    cannot_read(&source.cluster_version, &view.new_pods)
}

/// The backup that a recovery may use: one of this very EtcdCluster, or the one that the user names. Otherwise why not.
pub(super) fn candidate<'a>(view: &'a View<'_>) -> Result<&'a BackupPoint, String> {
    let newest = |of_us: bool| {
        let mut points: Vec<_> = view.world.backups.iter().collect();
        points.retain(|point| !of_us || is_ours(view, point));
        points.into_iter().max_by_key(|point| point.taken)
    };
    if let Some(named) = &view.intent.recovery_backup {
        let consented = newest(false).filter(|point| point.name == *named);
        return consented.ok_or_else(|| {
            format!("EtcdBackup {named} of spec.recovery.backupRef has no verified backup; name another one, or create an EtcdRestore")
        });
    }
    match (newest(true), newest(false)) {
        (Some(point), _) => Ok(point),
        (None, None) => Err("No verified backup of this cluster is known; create an EtcdRestore that names one, or set spec.recovery.onQuorumLoss to FromSurvivor".into()),
        (None, Some(other)) => Err(format!(
            "The newest verified backup, of EtcdBackup {}, is of another cluster ({}), as one that had this name before. To use it nevertheless set spec.recovery.backupRef.name to {}",
            other.name,
            other.cluster.map_or("not said which".to_owned(), |id| id.to_string()),
            other.name
        )),
    }
}

/// What a request asks for is still what a recovery may use: the user may have named another backup since it was made.
pub(super) fn may_be_used(view: &View<'_>, request: &RestoreRequest) -> bool {
    if let Some(named) = &view.intent.recovery_backup {
        return request.backup.as_ref() == Some(named);
    }
    let mut points = view.world.backups.iter();
    points.any(|point| request.backup.as_ref() == Some(&point.name) && is_ours(view, point))
}

fn is_ours(view: &View<'_>, point: &BackupPoint) -> bool {
    point.cluster.is_some_and(|id| view.record.cluster_ids.contains(&id))
}

/// Takes a request up. Nothing is touched before the record of it is written.
pub(super) fn begin(view: &View<'_>, record: &mut Record, request: &RestoreRequest, source: &RestoreSource) -> Step {
    let Some(seed) = view.world.fresh_names.first() else {
        return Step::new(Work::Recovering, Reason::Restoring, "no name for a new member").wake(LATER);
    };
    let restoring = Restoring {
        uid: request.uid.clone(),
        name: request.name.clone(),
        recovery: request.recovery,
        source: Box::new(source.clone()),
        token: view.world.fresh_token.clone(),
        seed: seed.clone(),
        old_claims: claims(view),
        step: RestoreStep::Stopping,
    };
    let note = Note {
        warning: true,
        reason: Reason::Restoring,
        message: format!(
            "EtcdRestore {}: the cluster is replaced by one from {}; {}",
            request.name,
            source.location,
            lost(source)
        ),
    };
    record.recovery = None;
    record.restore = Some(restoring);
    doing(format!("the cluster is replaced by one from {}", source.location))
        .with([Effect::Tell(note)])
        .wake(Duration::ZERO)
}

/// What a restore of this backup loses, in words.
pub(super) fn lost(source: &RestoreSource) -> String {
    match &source.taken {
        Some(taken) if source.restore_to.is_none() => {
            format!(
                "what was written after revision {} of {} is gone",
                source.revision, taken.0
            )
        }
        _ => format!("what was written after revision {} is gone", source.revision),
    }
}

pub(super) fn claims(view: &View<'_>) -> Vec<(MemberName, Uid)> {
    let claims = view.world.claims.iter();
    claims.map(|(name, claim)| (name.clone(), claim.uid.clone())).collect()
}

pub(super) fn doing(message: String) -> Step {
    Step::new(Work::Recovering, Reason::Restoring, message)
}
