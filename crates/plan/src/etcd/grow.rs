//! More members: added to the list as learners first, one after another, or all at once where etcd can (3.6).

use super::members::initial_cluster;
use super::{Effect, LATER, Launch, MemberName, Step, TlsStage, View, Work};

pub(super) fn grow(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let total = view.listed();
    let wanted = wanted(view);
    if total >= wanted {
        return None;
    }
    if let Some(member) = view.voters().find(|member| !member.is_healthy()) {
        return Some(
            Step::new(
                Work::Scaling,
                "WaitingForHealth",
                format!(
                    "{} of {wanted} members are in the cluster; a new one is added when {} answers again",
                    total, member.name
                ),
            )
            .wake(LATER),
        );
    }
    let versions = || view.world.pods.values().map(|pod| &pod.version).chain([&view.new_pods]);
    let learners = versions().all(|version| version.has_learners());
    let at_once = if versions().all(|version| version.has_max_learners()) {
        wanted - total
    } else {
        1
    };
    let new: Vec<MemberName> = view.world.fresh_names.iter().take(at_once).cloned().collect();
    let mut members = initial_cluster(view.intent, &list.members);
    let mut effects = Vec::new();
    for name in &new {
        let peer_url = view.intent.peer_url(name, view.stage == TlsStage::On);
        members.push((name.clone(), peer_url.clone()));
        effects.push(Effect::AddMember {
            member: name.clone(),
            peer_url,
            learner: learners,
            cluster: list.cluster,
        });
    }
    if view.intent.is_durable() {
        effects.extend(new.iter().map(|name| Effect::CreateClaim { member: name.clone() }));
    }
    let first = new.first()?.clone();
    effects.push(Effect::CreatePod {
        member: first,
        launch: Launch::Join { members },
        version: view.new_pods.clone(),
        tls: view.stage,
    });
    // After a promotion etcd refuses the next add until every voter has been connected for 5 s.
    Some(
        Step::new(
            Work::Scaling,
            "AddingMembers",
            format!("{total} of {wanted} members: adding {}", names(&new)),
        )
        .with(effects)
        .wake(LATER),
    )
}

/// The size to reach now: one more while a healthy member is to be replaced, so that fault tolerance never drops.
pub(super) fn wanted(view: &View<'_>) -> usize {
    view.intent.size + usize::from(view.voters().any(|member| leaves(view, member)))
}

/// A healthy member that must go: the user marked it, or it cannot restart with new settings and keep its data.
pub(super) fn leaves(view: &View<'_>, member: &super::Member<'_>) -> bool {
    member.pod.is_some_and(|pod| {
        pod.marked_to_leave || (!view.intent.is_durable() && super::restart::made_otherwise(view, &member.name, pod))
    })
}

fn names(members: &[MemberName]) -> String {
    members
        .iter()
        .map(|name| name.0.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}
