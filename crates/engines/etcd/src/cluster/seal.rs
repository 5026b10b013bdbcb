//! A member that takes part is sealed: from then on its etcd starts only with the data it has.
//!
//! A container restarts with the environment it had. Were that still "join" or "first member", an emptied volume would
//! let the member come back under its old ID without what it had acknowledged, or found a second cluster.

use super::{Effect, LaunchKind, View};

/// Done beside whatever else the round does. Learners are sealed together with their promotion.
pub(super) fn seal(view: &View<'_>) -> Vec<Effect> {
    if view.world.list.is_none() {
        return Vec::new();
    }
    view.members
        .values()
        .filter(|member| member.is_healthy() && member.is_voter())
        .filter_map(|member| {
            let unsealed = |pod: &&super::Pod| {
                !matches!(pod.launch, LaunchKind::Sealed | LaunchKind::ForceNew) && !pod.terminating
            };
            let pod = member.pod.filter(unsealed)?;
            Some(Effect::SealPod {
                member: member.name.clone(),
                uid: pod.uid.clone(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Reason;
    use crate::cluster::testing::three;

    #[test]
    fn a_voter_that_serves_is_sealed_whatever_it_was_started_as() {
        for launch in [
            LaunchKind::Seed,
            LaunchKind::Static,
            LaunchKind::Join,
            LaunchKind::Restore,
        ] {
            let given = three().pod("c-b", |pod| pod.launch = launch);
            given.then(Reason::AsExpected, &["seal c-b"]);
        }
    }

    #[test]
    fn nobody_is_sealed_without_a_proven_list() {
        let given = three().pod("c-b", |pod| pod.launch = LaunchKind::Join).without_quorum();
        given.then(Reason::WaitingForQuorum, &[]);
    }
}
