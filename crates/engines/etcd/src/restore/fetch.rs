//! Which backup is meant, and a pod that fetches and proves it. The cluster runs on meanwhile.

use std::time::Duration;

use crate::api::agent::{InspectTask, Inspected, Outcome, Place, Task};
use crate::api::etcd_backup::Encryption;
use crate::api::etcd_restore::{EtcdRestoreSpec, EtcdRestoreStatus, RestorePhase, RestoreSource};
use crate::api::{GROUP, VERSION, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use stateward_core::backoff::Backoff;
use stateward_core::manifests::hash;
use stateward_core::schedule::later;

use super::{Cause, Effect, Reason, Step, View, fail, tell, too_new};
use crate::agent::{Agent, AgentPod, State};
use crate::backup::image_pull_secrets;

/// The first wait after a failure, and the longest.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(300),
};
/// Seconds after which Kubernetes ends a pod that hangs without a word.
const LAST_RESORT: i64 = 6 * 3600;

/// How long a pod is waited for after it should have stopped, or after its node has died. It only reads: a second one beside
/// it harms nothing.
const LOST: Duration = Duration::from_secs(60);

/// The backup that is meant.
struct Chosen<'a> {
    place: Place,
    /// Exactly this file, and what is known of its content.
    location: Option<String>,
    sha256: Option<String>,
    /// The newest good one of the path.
    latest: bool,
    encryption: Option<&'a Encryption>,
    service_account: Option<&'a str>,
}

pub(super) fn fetch(view: &View<'_>, status: &mut EtcdRestoreStatus) -> Step {
    status.phase = Some(RestorePhase::Fetching);
    let chosen = match choose(view) {
        Ok(chosen) => chosen,
        Err((reason, message)) => return Step::say(reason, message),
    };
    if !status.agent.is_empty() {
        return match view.world.agents.get(&status.agent) {
            None => make(view, status, &chosen),
            Some(agent) => look(view, status, &chosen, agent),
        };
    }
    if let Some(missing) = &view.world.missing {
        return Step::say(Reason::SecretMissing, missing.clone());
    }
    if let Some(retry) = &status.retry_at {
        let left = Duration::try_from(retry.0.duration_since(view.now)).unwrap_or_default();
        if !left.is_zero() && left <= BACKOFF.longest {
            let message = format!("{}; tried again in a while", status.reason);
            return Step::say(Reason::Waiting, message).wake(left);
        }
    }
    status.attempts += 1;
    status.retry_at = None;
    // The pod of an EtcdRestore that had this name before may still be on its way out.
    let what = format!("inspect-{}-{}", &hash(&view.uid())[..5], status.attempts);
    status.agent = names::agent_pod(view.name(), &what, &hash(&view.name())[..6]);
    make(view, status, &chosen)
}

fn make(view: &View<'_>, status: &mut EtcdRestoreStatus, chosen: &Chosen<'_>) -> Step {
    let step = Step::say(
        Reason::Fetching,
        format!("the backup is being fetched and proven by pod {}", status.agent),
    );
    match pod(view, &status.agent, chosen) {
        Some(pod) => step.with([Effect::CreatePod(Box::new(pod))]),
        None => fail(
            status,
            Reason::InvalidSpec,
            "no store is given: set one of s3, abs, gcs, oss, file".into(),
        ),
    }
}

fn look(view: &View<'_>, status: &mut EtcdRestoreStatus, chosen: &Chosen<'_>, agent: &Agent) -> Step {
    let doing = |message: String| Step::say(Reason::Fetching, message);
    let silent = agent.terminating.or(agent.node_dead).filter(|_| !agent.is_over());
    if let Some(since) = silent {
        let waited = Duration::try_from(view.now.duration_since(since)).unwrap_or_default();
        if waited < LOST {
            let message = format!(
                "waiting for pod {}, which is being stopped or whose node does not answer",
                status.agent
            );
            return doing(message).wake(LOST.saturating_sub(waited));
        }
        let message = format!("pod {} is on a node that does not answer", status.agent);
        return again(view, status, Reason::NodeLost, message);
    }
    match &agent.state {
        State::Running => doing(format!(
            "the backup is being fetched and proven by pod {}",
            status.agent
        )),
        State::Waiting(None) => doing(format!("pod {} is starting", status.agent)),
        State::Waiting(Some(why)) => doing(format!("pod {} waits: {why}", status.agent)),
        State::Said(outcome) => match outcome.as_ref() {
            Outcome::Inspected(inspected) => proven(view, status, chosen, inspected),
            Outcome::Failed(failure) if !failure.retry => {
                fail(status, Cause::OfAgent(failure.reason.clone()), failure.message.clone())
            }
            Outcome::Failed(failure) => again(
                view,
                status,
                Cause::OfAgent(failure.reason.clone()),
                failure.message.clone(),
            ),
            other => fail(
                status,
                Reason::WrongAnswer,
                format!(
                    "pod {} answered {other:?}: is its image another version of Stateward?",
                    status.agent
                ),
            ),
        },
        State::Died(words) | State::TimedOut(words) => {
            let message = format!("pod {} ended: {words}", status.agent);
            again(view, status, Reason::PodEnded, message)
        }
    }
}

fn again(view: &View<'_>, status: &mut EtcdRestoreStatus, reason: impl Into<Cause>, message: String) -> Step {
    let reason = reason.into();
    let wait = BACKOFF.after(status.attempts);
    let then = later(view.now, wait);
    status.retry_at = Timestamp::from_second(then.as_second()).ok().map(Time);
    status.agent.clear();
    status.reason.clone_from(&message);
    let note = tell(true, Reason::FetchFailed, format!("{reason}: {message}"));
    Step::say(reason, message).with([note]).wake(wait)
}

/// What was found is written down for good; from here on EtcdCluster control may replace the cluster by it.
fn proven(view: &View<'_>, status: &mut EtcdRestoreStatus, chosen: &Chosen<'_>, found: &Inspected) -> Step {
    if chosen
        .sha256
        .as_ref()
        .is_some_and(|known| !known.eq_ignore_ascii_case(&found.sha256))
    {
        let message = format!(
            "{} has another content than when it was made (SHA-256 {}): name another backup",
            found.location, found.sha256
        );
        return fail(status, Reason::BackupCorrupt, message);
    }
    let cluster = view.world.cluster.as_deref();
    if let Some(why) = cluster.and_then(|cluster| too_new(&found.cluster_version, cluster)) {
        return fail(status, Reason::BackupTooNew, why);
    }
    let spec = &view.restore.spec;
    status.source = Some(RestoreSource {
        store: chosen.place.store.clone(),
        encryption: chosen.encryption.cloned(),
        service_account_name: chosen.service_account.map(str::to_owned),
        location: found.location.clone(),
        sha256: found.sha256.clone(),
        revision: found.revision,
        taken: found.taken.clone(),
        restore_to: spec.restore_to.clone(),
        revision_bump: spec.revision_bump.unwrap_or(EtcdRestoreSpec::DEFAULT_REVISION_BUMP),
        cluster_version: found.cluster_version.clone(),
    });
    status.location.clone_from(&found.location);
    status.revision = found.revision;
    status.sha256.clone_from(&found.sha256);
    status.phase = Some(RestorePhase::Replacing);
    status.reason.clear();
    status.agent.clear();
    let words = format!(
        "{} is proven: revision {}, {} bytes",
        found.location, found.revision, found.size_bytes
    );
    let note = tell(false, Reason::BackupProven, words.clone());
    let mut step = super::sweep(view);
    step.words = Some((Reason::Proven.into(), words));
    step.with([note]).wake(Duration::ZERO)
}

/// What the spec means. The error is what is waited for.
fn choose<'a>(view: &View<'a>) -> Result<Chosen<'a>, (Reason, String)> {
    let spec = &view.restore.spec;
    let Some(reference) = &spec.backup_ref else {
        return Ok(Chosen {
            place: Place {
                store: spec.store.clone(),
                encrypted: spec.encryption.is_some(),
                ..Place::default()
            },
            location: None,
            sha256: None,
            latest: spec.latest,
            encryption: spec.encryption.as_ref(),
            service_account: spec.service_account_name.as_deref(),
        });
    };
    let Some(backup) = view.world.backup.as_deref() else {
        let message = format!(
            "EtcdBackup {} does not exist: create it, or name the store in this EtcdRestore",
            reference.name
        );
        return Err((Reason::BackupMissing, message));
    };
    let plan = &backup.spec.plan;
    let encryption = spec.encryption.as_ref().or(plan.encryption.as_ref());
    let mut chosen = Chosen {
        place: Place {
            encrypted: encryption.is_some(),
            ..crate::backup::manifests::place(plan)
        },
        location: None,
        sha256: None,
        latest: plan.is_periodic(),
        encryption,
        service_account: spec
            .service_account_name
            .as_deref()
            .or(plan.service_account_name.as_deref()),
    };
    // A point between two snapshots: the pod finds the snapshot before it.
    if spec.restore_to.is_none() {
        let Some(point) = crate::backup::point(backup) else {
            let message = format!("EtcdBackup {} has no good backup yet; waiting for one", reference.name);
            return Err((Reason::NoBackup, message));
        };
        chosen.location = Some(point.location);
        chosen.sha256 = Some(point.sha256).filter(|sha256| !sha256.is_empty());
        chosen.latest = false;
    }
    Ok(chosen)
}

fn pod(view: &View<'_>, name: &str, chosen: &Chosen<'_>) -> Option<Pod> {
    let agent = AgentPod {
        namespace: view.restore.metadata.namespace.as_deref().unwrap_or_default(),
        name: name.to_owned(),
        owner: OwnerReference {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: "EtcdRestore".into(),
            name: view.name().to_owned(),
            uid: view.uid().to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        },
        component: "inspect",
        image: &view.world.image,
        engine_image: None,
        task: Task::Inspect(InspectTask {
            place: chosen.place.clone(),
            location: chosen.location.clone(),
            latest: chosen.latest,
            restore_to: view.restore.spec.restore_to.clone(),
        }),
        task_hash: None,
        store: Some(chosen.place.store.store(None).ok()?),
        client_tls: None,
        encryption: chosen.encryption,
        service_account: chosen.service_account,
        image_pull_secrets: view
            .world
            .cluster
            .as_deref()
            .map(image_pull_secrets)
            .unwrap_or_default(),
        deadline: Some(LAST_RESORT),
        keeps_running: false,
    };
    Some(agent.build())
}
