//! More members: added to the list as learners first, one after another, or all at once where etcd can (3.6).

use super::members::initial_cluster;
use super::{Effect, LATER, Launch, MemberName, Reason, Step, TlsStage, View, Work, pods, size};

pub(super) fn grow(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let total = view.listed();
    let wanted = size::wanted(view);
    if total >= wanted {
        return None;
    }
    if let Some(member) = view.voters().find(|member| !member.is_healthy()) {
        return Some(
            Step::new(
                Work::Scaling,
                Reason::WaitingForHealth,
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
    // One: a joining etcd resolves every name in the list and waits up to 30 s for one that DNS does not know, so a
    // member is added only when the one before it has its address.
    let new: Vec<MemberName> = view.world.fresh_names.iter().take(1).cloned().collect();
    let first = new.first()?.clone();
    let mut members = initial_cluster(view.intent, &list.members);
    let mut effects = Vec::new();
    // One more than wanted takes the place of a member that is well: not for a pod that can never be.
    if total >= view.intent.size {
        effects.push(pods::successor(view, &first, view.stage));
    }
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
    effects.push(pods::create(view, &first, Launch::Join { members }, view.stage));
    // After a promotion etcd refuses the next add until every voter has been connected for 5 s.
    Some(
        Step::new(
            Work::Scaling,
            Reason::AddingMembers,
            format!("{total} of {wanted} members are in the cluster: adding {}", new.len()),
        )
        .with(effects)
        .wake(LATER),
    )
}

/// The next learner can be added before those that have started are promoted, so that etcd's 5 s after a promotion are
/// waited for once at most (3.6 and later allow several learners).
pub(super) fn before_promotion(view: &View<'_>) -> Option<Step> {
    let versions = || view.world.pods.values().map(|pod| &pod.version).chain([&view.new_pods]);
    let list = view.world.list.as_ref()?;
    let can = list.members.len() < size::wanted(view)
        && versions().all(|version| version.has_max_learners())
        && view.all_voters_healthy()
        && list.members.iter().all(|listed| listed.name.is_some())
        && view
            .members
            .values()
            .all(|member| member.listed.is_none_or(|listed| !listed.learner) || member.is_healthy());
    if can { grow(view) } else { None }
}
