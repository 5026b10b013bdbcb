//! The pods of an EtcdBackup: what each is told, and its name, which is the lock.

use std::time::Duration;

use crate::api::agent::{BackupTask, DeleteTask, FollowTask, Place, ProveTask, Retention, Task};
use crate::api::etcd_backup::{AttemptKind, BackupAttempt, BackupPlan, BackupRecord, EtcdBackupStatus};
use crate::api::{EtcdVersion, GROUP, VERSION, names};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::world::Source;
use super::{View, uid, verify};
use crate::agent::{Agent, AgentPod};
use stateward_core::manifests::hash;

/// The kind of work, as the pods' label has it.
const BACKUP: &str = "backup";
const PROVE: &str = "prove";
const DELETE: &str = "delete";
const FOLLOW: &str = "follow";

/// An attempt that sets no limit of its own is ended by Kubernetes after this many seconds: the last resort against one that
/// hangs without a word.
const LAST_RESORT: i64 = 6 * 3600;
/// The agent gives up by itself before Kubernetes ends it.
const ITS_OWN_WORDS: i64 = 30;
/// Seconds for deleting files.
const DELETING: i64 = 240;
/// etcdutl came with 3.5: older backups are proven by this one.
const PROVES_OLDER: (u64, u64, u64) = (3, 5, 35);

/// The pod does the work of an attempt, not of following.
pub(super) fn is_attempt(agent: &Agent) -> bool {
    agent.component != FOLLOW
}

fn component(kind: AttemptKind) -> &'static str {
    match kind {
        AttemptKind::Backup => BACKUP,
        AttemptKind::Prove => PROVE,
        AttemptKind::Delete => DELETE,
    }
}

/// The name of an attempt's pod.
pub(super) fn attempt_name(view: &View<'_>, kind: AttemptKind, number: i64) -> String {
    let what = format!("{}-{number}", component(kind));
    names::agent_pod(view.name(), &what, &hash(&view.name())[..6])
}

/// The name of the pod that streams changes.
pub(super) fn follower_name(view: &View<'_>) -> String {
    names::agent_pod(view.name(), FOLLOW, &hash(&view.name())[..6])
}

/// After what time Kubernetes ends an attempt.
pub(super) fn deadline(view: &View<'_>, kind: AttemptKind) -> Duration {
    let limit = view
        .plan()
        .backup_policy
        .as_ref()
        .and_then(|policy| policy.timeout_in_second);
    let seconds = match (kind, limit) {
        (AttemptKind::Delete, _) => DELETING,
        (AttemptKind::Backup, Some(limit)) if limit > 0 => limit.saturating_add(ITS_OWN_WORDS),
        _ => LAST_RESORT,
    };
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The store and how files are packed.
pub(crate) fn place(plan: &BackupPlan) -> Place {
    Place {
        store: plan.store.clone(),
        compression: plan.compression.unwrap_or_default(),
        encrypted: plan.encryption.is_some(),
    }
}

/// There may be files of this object in the store.
pub(super) fn has_files(view: &View<'_>, status: &EtcdBackupStatus) -> bool {
    view.plan().store().is_ok() && (!status.backups.is_empty() || (view.plan().is_periodic() && status.attempts > 0))
}

/// The pod of an attempt. `None`: what it would work on is not there.
pub(super) fn pod(view: &View<'_>, status: &EtcdBackupStatus, attempt: &BackupAttempt) -> Option<Pod> {
    let plan = view.plan();
    let mut engine_image = None;
    let task = match attempt.kind {
        AttemptKind::Backup => Task::Backup(BackupTask {
            endpoints: endpoints(view)?,
            place: place(plan),
            periodic: plan.is_periodic(),
            timeout_seconds: plan.backup_policy.as_ref().and_then(|policy| policy.timeout_in_second),
            prove_later: verify::is_asked(view),
            attempt: format!("{}-{}", short_uid(view), attempt.number),
            retention: retention(view, status),
        }),
        AttemptKind::Prove => {
            let record = status.backups.first()?.clone();
            engine_image = Some(proving_image(view, &record.etcd_version));
            Task::Prove(ProveTask {
                place: place(plan),
                record,
                retention: retention(view, status),
            })
        }
        AttemptKind::Delete => Task::Delete(DeleteTask {
            place: place(plan),
            locations: status.backups.iter().map(file).collect(),
            unproven_of: short_uid(view),
            // Where another object writes to the same path, only what is known to be this one's goes.
            all_of_path: plan.is_periodic() && view.world.sharer.is_none(),
        }),
    };
    let client_tls = client_tls(view).filter(|_| attempt.kind == AttemptKind::Backup);
    let deadline = i64::try_from(deadline(view, attempt.kind).as_secs()).ok();
    Some(
        AgentPod {
            engine_image,
            task,
            client_tls,
            deadline,
            ..base(view, attempt.pod.clone(), component(attempt.kind))?
        }
        .build(),
    )
}

/// Where the file of a record is. What stands at the location of one that is not proven may be another's.
fn file(record: &BackupRecord) -> String {
    match record.unproven_at.as_str() {
        "" => record.location.clone(),
        elsewhere => elsewhere.to_owned(),
    }
}

/// What tells the files of this object's attempts from those of others.
fn short_uid(view: &View<'_>) -> String {
    hash(&uid(view.backup).0)[..8].to_owned()
}

/// What may go, and what is remembered of how the files were proven.
fn retention(view: &View<'_>, status: &EtcdBackupStatus) -> Retention {
    let plan = view.plan();
    if !plan.is_periodic() {
        return Retention::default();
    }
    let as_asked = |record: &&BackupRecord| verify::proven_as_asked(record, plan);
    let (proven, unproven): (Vec<_>, Vec<_>) = status.backups.iter().partition(as_asked);
    let locations = |records: Vec<&BackupRecord>| records.into_iter().map(|record| record.location.clone()).collect();
    Retention {
        max_backups: plan.max_backups(),
        max_age_seconds: plan.max_age_seconds(),
        proven: locations(proven),
        unproven: locations(unproven),
    }
}

/// The pod that streams changes.
pub(super) fn follower(view: &View<'_>, status: &EtcdBackupStatus) -> Option<Pod> {
    let mut task = follow_task(view)?;
    let task_hash = Some(hash(&task));
    task.after_revision = status.backups.last().map_or(0, |oldest| oldest.revision);
    Some(
        AgentPod {
            task: Task::Follow(task),
            task_hash,
            client_tls: client_tls(view),
            keeps_running: true,
            ..base(view, follower_name(view), FOLLOW)?
        }
        .build(),
    )
}

/// The hash of what the pod that streams changes should be told.
pub(super) fn follower_task(view: &View<'_>) -> Option<String> {
    follow_task(view).map(|task| hash(&task))
}

/// Without the revision to begin after, which moves on with every backup. A cluster is reached by its service, which stays
/// when members change.
fn follow_task(view: &View<'_>) -> Option<FollowTask> {
    Some(FollowTask {
        endpoints: match &view.world.source {
            Source::Endpoints => view.backup.spec.etcd_endpoints.clone(),
            Source::NoCluster => return None,
            Source::Cluster(cluster) => vec![cluster.service.clone()],
        },
        place: place(view.plan()),
        after_revision: 0,
    })
}

fn base<'a>(view: &View<'a>, name: String, component: &'static str) -> Option<AgentPod<'a, Task>> {
    let plan = view.plan();
    Some(AgentPod {
        namespace: view.backup.metadata.namespace.as_deref().unwrap_or_default(),
        name,
        owner: OwnerReference {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: "EtcdBackup".into(),
            name: view.name().to_owned(),
            uid: uid(view.backup).0,
            controller: Some(true),
            // The API server asks for a right on finalizers when this is set; nothing here waits for it.
            block_owner_deletion: None,
        },
        component,
        image: &view.world.image,
        engine_image: None,
        task: Task::Delete(DeleteTask::default()),
        task_hash: None,
        store: Some(plan.store().ok()?),
        client_tls: None,
        encryption: plan.encryption.as_ref(),
        service_account: plan.service_account_name.as_deref(),
        image_pull_secrets: view.world.source.image_pull_secrets(),
        deadline: None,
        keeps_running: false,
    })
}

fn endpoints(view: &View<'_>) -> Option<Vec<String>> {
    match &view.world.source {
        Source::Endpoints => Some(view.backup.spec.etcd_endpoints.clone()),
        Source::NoCluster => None,
        Source::Cluster(cluster) if cluster.members.is_empty() => Some(vec![cluster.service.clone()]),
        Source::Cluster(cluster) => Some(cluster.members.clone()),
    }
}

fn client_tls<'a>(view: &View<'a>) -> Option<&'a str> {
    match &view.world.source {
        Source::Endpoints => view.backup.spec.client_tls_secret.as_deref(),
        Source::NoCluster => None,
        Source::Cluster(cluster) => cluster.client_secret.as_deref(),
    }
}

/// An image of etcd that can restore a backup of this version.
fn proving_image(view: &View<'_>, version: &str) -> String {
    let (major, minor, patch) = PROVES_OLDER;
    let oldest = EtcdVersion::new(major, minor, patch);
    let version = version
        .parse()
        .ok()
        .filter(|version: &EtcdVersion| *version >= oldest || version.minor() >= minor);
    format!("{}:{}", view.world.source.repository(), version.unwrap_or(oldest).tag())
}
