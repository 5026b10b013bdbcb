//! EtcdRestores that can be followed: the user's, and that of a recovery from quorum loss. Chapters share this.

use std::time::Duration;

use stateward_api::etcd_restore::RestoreSource;

use super::facts::cannot_read;
use super::record::{Record, RestoreStep, Restoring};
use super::world::{MemberName, RestoreRequest, Uid};
use super::{Effect, LATER, Note, Reason, Step, View, Work};

/// Why pods that are made now could not read a backup.
pub(super) fn too_new(view: &View<'_>, source: &RestoreSource) -> Option<String> {
    cannot_read(&source.cluster_version, &view.new_pods)
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
