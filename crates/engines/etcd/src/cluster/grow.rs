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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{three, version};

    #[test]
    fn a_member_is_added_to_the_list_before_its_pod_is_made() {
        let given = three().spec(|intent| intent.size = 5);
        given.then(
            Reason::AddingMembers,
            &[
                "add c-new as a learner",
                "create the claim of c-new",
                "create pod c-new (Join, etcd 3.5.35)",
            ],
        );
    }

    #[test]
    fn nobody_is_added_while_a_voter_does_not_answer() {
        let given = three().spec(|intent| intent.size = 5).silent("c-b");
        given.then(Reason::WaitingForHealth, &[]);
    }

    #[test]
    fn a_marked_member_gets_its_successor_before_it_leaves() {
        let given = three().pod("c-b", |pod| pod.marked_to_leave = true);
        given.then(
            Reason::AddingMembers,
            &[
                "try pod c-new (etcd 3.5.35) without making it",
                "add c-new as a learner",
                "create the claim of c-new",
                "create pod c-new (Join, etcd 3.5.35)",
            ],
        );
    }

    #[test]
    fn where_etcd_takes_several_learners_the_next_is_added_before_a_promotion() {
        for (etcd, reason) in [("3.5.35", Reason::PromotingLearner), ("3.6.16", Reason::AddingMembers)] {
            let mut given = three()
                .spec(|intent| intent.size = 5)
                .listed("c-c", |line| line.learner = true);
            given.intent.version = version(etcd);
            given.record.current = Some(version(etcd));
            given.record.target = Some(version(etcd));
            for pod in given.world.pods.values_mut() {
                pod.version = version(etcd);
            }
            assert_eq!(given.plan().report.progressing.reason, reason, "{etcd}");
        }
    }
}
