//! What is left of members that are out of the list: their pods, then their data, by UID (rule 4).

use super::{Effect, LATER, Reason, Step, Stop, View, Work, pods};

pub(super) fn clean_up(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let mut effects = Vec::new();
    for member in view.members.values().filter(|member| member.listed.is_none()) {
        if let Some(pod) = member.pod {
            // A dead node never confirms that its pod has stopped; the member is out of the cluster, so nobody needs that.
            let on_dead_node = pod
                .node
                .as_ref()
                .is_some_and(|node| view.world.dead_nodes.contains_key(node));
            if on_dead_node || !pod.terminating {
                let how = if on_dead_node { Stop::Force } else { Stop::Gone };
                effects.push(pods::stop(&member.name, pod, how));
            }
        }
        let goes = |claim: &&super::Claim| !claim.terminating && !super::old_claims::is_kept(view, &member.name, claim);
        if let Some(claim) = member.claim.filter(goes) {
            effects.push(Effect::DeleteClaim {
                member: member.name.clone(),
                uid: claim.uid.clone(),
                cluster: list.cluster,
            });
        }
    }
    (!effects.is_empty()).then(|| {
        Step::new(
            Work::Changing,
            Reason::CleaningUp,
            "removing what is left of members that are out of the cluster",
        )
        .with(effects)
        .wake(LATER)
    })
}

#[cfg(test)]
mod tests {
    use crate::cluster::Reason;
    use crate::cluster::testing::three;

    #[test]
    fn what_is_left_of_a_member_goes_by_uid_when_the_list_lacks_it() {
        let given = three().with_objects("c-old");
        given.then(
            Reason::CleaningUp,
            &[
                "delete pod c-old (Gone, uid pod-c-old)",
                "delete the claim of c-old (uid claim-c-old)",
            ],
        );
    }

    #[test]
    fn without_a_proven_list_nothing_is_deleted() {
        let given = three().with_objects("c-old").without_quorum();
        given.then(Reason::WaitingForQuorum, &[]);
    }

    #[test]
    fn a_pod_on_a_dead_node_is_not_waited_for() {
        let given = three().with_objects("c-old").pod("c-old", |pod| pod.terminating = true);
        let given = given.world(|world| {
            let now = jiff::Timestamp::UNIX_EPOCH;
            world.dead_nodes.insert("node-of-c-old".into(), now);
            world.claims.remove(&"c-old".into());
        });
        given.then(Reason::CleaningUp, &["delete pod c-old (Force, uid pod-c-old)"]);
    }
}
