//! `continuous`: one pod streams every change to the store, from the first good backup on. Its name is fixed, so there is
//! never a second; Kubernetes starts its program again when it ends. How far it is, it is asked slowly.

use std::time::Duration;

use crate::api::etcd_backup::{EtcdBackupStatus, RestorablePoint};

use super::world::Source;
use super::{Activity, Effect, Reason, Step, View, manifests, stop, tell};
use crate::agent::State;

const SECOND: Duration = Duration::from_secs(1);
/// How often it is asked how far it is.
const ASK: Duration = Duration::from_secs(10);

pub(super) fn follow(view: &View<'_>, status: &mut EtcdBackupStatus) -> Step {
    let name = manifests::follower_name(view);
    let agent = view.world.agents.get(&name);
    if !view.plan().continuous {
        status.latest_restorable = None;
        return match agent {
            Some(agent) if agent.terminating.is_none() => Step::default().with([stop(&name, agent)]),
            _ => Step::default(),
        };
    }
    let Some(newest) = status.backups.iter().find(|record| record.verified.is_some()) else {
        return Step::default(); // changes are worth nothing without a snapshot to start from
    };
    let snapshot = RestorablePoint {
        revision: newest.revision,
        time: newest.completed_at.clone(),
    };
    let said = view.world.progress.as_ref();
    let latest = [
        Some(snapshot),
        said.and_then(|said| said.latest.clone()),
        status.latest_restorable.clone(),
    ];
    // While nothing is written the revision stays and the time moves on.
    let further = |point: &RestorablePoint| (point.revision, point.time.as_ref().map(|time| time.0));
    status.latest_restorable = latest.into_iter().flatten().max_by_key(further);
    let Some(agent) = agent else {
        let can_start = match &view.world.source {
            Source::Endpoints => true,
            Source::NoCluster => false,
            Source::Cluster(cluster) => !cluster.members.is_empty(),
        };
        return match manifests::follower(view, status).filter(|_| can_start && view.world.missing.is_none()) {
            Some(pod) => Step::default().with([
                Effect::CreatePod(Box::new(pod)),
                tell(
                    false,
                    Reason::Following,
                    format!("pod {name} streams every change to the store"),
                ),
            ]),
            None => Step::default(),
        };
    };
    if view.is_stuck(agent) {
        // Its name is taken until it is forgotten.
        let forget = Effect::ForgetPod {
            name: name.clone(),
            uid: agent.uid.clone(),
        };
        let message = format!("pod {name} is on a node that does not answer, and is made again elsewhere");
        return Step::default().with([forget, tell(true, Reason::FollowerLost, message)]);
    }
    let lost = agent.terminating.or(agent.node_dead);
    if let Some(since) = lost {
        return Step::default().wake(super::STUCK.saturating_sub(view.since(since)) + SECOND);
    }
    let outdated = manifests::follower_task(view).is_some_and(|task| task != agent.task);
    match &agent.state {
        _ if outdated => Step::default().with([stop(&name, agent)]),
        State::Said(_) | State::Died(_) | State::TimedOut(_) => Step::default().with([
            stop(&name, agent),
            tell(
                true,
                Reason::FollowerEnded,
                format!("pod {name} ended and is made again"),
            ),
        ]),
        State::Waiting(None) => Step::default().wake(ASK),
        State::Waiting(Some(why)) => trouble(format!(
            "changes are not streamed to the store: pod {name} waits: {why}"
        )),
        State::Running => match said {
            Some(said) if !said.problem.is_empty() => {
                trouble(format!("changes are not streamed to the store: {}", said.problem))
            }
            _ => Step::default().wake(ASK),
        },
    }
}

fn trouble(message: String) -> Step {
    Step::say(Activity::Blocked, Reason::NotFollowing, message).wake(ASK)
}
