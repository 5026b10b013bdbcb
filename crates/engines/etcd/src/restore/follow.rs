//! The backup is proven: EtcdCluster control replaces the cluster, and this says how far it is.

use crate::api::EtcdVersion;
use crate::api::etcd_cluster::EtcdClusterStatus;
use crate::api::etcd_restore::{EtcdRestoreStatus, RestorePhase};

use crate::cluster::facts::cannot_read;

use super::{Reason, Step, View, fail, is_recovery, tell, too_new};

pub(super) fn follow(view: &View<'_>, status: &mut EtcdRestoreStatus) -> Step {
    let name = view.restore.cluster_name();
    let Some(cluster) = view.world.cluster.as_deref() else {
        return Step::say(
            Reason::ClusterMissing,
            format!(
                "EtcdCluster {name} does not exist: create it with the spec it is to have, and it begins from this backup"
            ),
        );
    };
    let there = cluster.status.clone().unwrap_or_default();
    let record = there.restore.as_ref().filter(|record| record.restore_uid == view.uid());
    let Some(record) = record else {
        return not_taken_up(view, status, &there);
    };
    status.cluster_uid = cluster.metadata.uid.clone().unwrap_or_default();
    status.seed.clone_from(&record.seed);
    status.phase = Some(record.phase);
    if record.phase == RestorePhase::Complete {
        status.succeeded = true;
        status.reason.clear();
        status.completed_at = record.completed_at.clone().or_else(|| Some(view.stamp()));
        let words = format!("EtcdCluster {name} serves from {}", status.location);
        return Step::default().with([tell(false, Reason::Restored, words)]);
    }
    Step::say(Reason::Replacing, there.waiting)
}

fn not_taken_up(view: &View<'_>, status: &mut EtcdRestoreStatus, there: &EtcdClusterStatus) -> Step {
    let name = view.restore.cluster_name();
    let cluster = view.world.cluster.as_deref();
    let asked = there.recovery.as_ref().map(|recovery| recovery.restore.as_str());
    if cluster.is_some_and(|cluster| is_recovery(view.restore, cluster)) && asked != Some(view.name()) {
        let message = match asked.filter(|asked| !asked.is_empty()) {
            Some(asked) => format!("EtcdRestore {asked} took its place: another backup is used for the recovery"),
            None => format!("EtcdCluster {name} has its quorum back: the recovery is not needed any more"),
        };
        return fail(status, Reason::NotNeeded, message);
    }
    let another = there.restore.as_ref().map(|record| record.name.as_str());
    let same_cluster =
        cluster.is_some_and(|cluster| cluster.metadata.uid.as_deref() == Some(status.cluster_uid.as_str()));
    if status.phase == Some(RestorePhase::Seeding) && same_cluster {
        let by = another.unwrap_or("something else");
        return fail(
            status,
            Reason::Superseded,
            format!("EtcdRestore {by} took its place before the cluster served"),
        );
    }
    let version = status.source.as_ref().map(|source| source.cluster_version.clone());
    let version = version.unwrap_or_default();
    if let Some(why) = cluster.and_then(|cluster| too_new(&version, cluster)) {
        return fail(status, Reason::BackupTooNew, why); // The cluster came after the backup was proven.
    }
    status.phase = Some(RestorePhase::Replacing);
    let waits = cluster.is_some_and(|cluster| cluster.spec.paused || cluster.spec.hibernate);
    if waits {
        let message = format!("EtcdCluster {name} is paused or hibernates: it is replaced when it is not any more");
        return Step::say(Reason::Waiting, message);
    }
    let runs = there.current_version.parse::<EtcdVersion>().ok();
    let upgraded_first = runs.filter(|runs| cannot_read(&version, runs).is_some());
    let for_what = match upgraded_first {
        Some(runs) => {
            format!(
                "EtcdCluster {name} runs etcd {runs}, which cannot read this backup: it is replaced after its upgrade"
            )
        }
        None => format!("waiting for EtcdCluster {name} to be replaced"),
    };
    Step::say(Reason::Waiting, format!("{for_what}; it is at: {}", there.waiting))
}
