//! Pods that are missing come back as the members they were, with their data. Nothing is lost by it, so it needs no
//! quorum, and all come back at once.

use super::{Reason, Step, View, Work, pods};

pub(super) fn restart(view: &View<'_>) -> Option<Step> {
    let back = pods::bring_back(view)?;
    let message = format!("bringing back {} with the data they have", back.names.join(", "));
    Some(Step::new(Work::Recovering, Reason::RestartingMembers, message).with(back.effects))
}

#[cfg(test)]
mod tests {
    use crate::cluster::testing::three;
    use crate::cluster::{Blocked, Reason};

    #[test]
    fn a_missing_pod_comes_back_with_its_data() {
        for given in [three(), three().without_quorum()] {
            let given = given.without_pod("c-b");
            given.then(Reason::RestartingMembers, &["create pod c-b (Sealed, etcd 3.5.35)"]);
        }
    }

    #[test]
    fn an_evicted_pod_gives_its_name_back_to_its_successor() {
        let given = three()
            .silent("c-b")
            .pod("c-b", |pod| (pod.running, pod.ended) = (false, true));
        given.then(
            Reason::RestartingMembers,
            &[
                "try pod c-b (etcd 3.5.35) without making it",
                "delete pod c-b (Restart, uid pod-c-b)",
            ],
        );
    }

    #[test]
    fn a_corrected_spec_reaches_a_pod_that_cannot_start() {
        let blocked = Blocked {
            reason: "ImagePullBackOff".into(),
            message: "no such image".into(),
            since: None,
        };
        let given = three().silent("c-b").pod("c-b", |pod| {
            pod.running = false;
            pod.blocked = Some(blocked);
        });
        given.then(Reason::WaitingForMember, &[]);
        let corrected = given.pod("c-b", |pod| pod.template = "the wrong image".into());
        corrected.then(
            Reason::RestartingMembers,
            &[
                "try pod c-b (etcd 3.5.35) without making it",
                "delete pod c-b (Restart, uid pod-c-b)",
            ],
        );
    }
}
