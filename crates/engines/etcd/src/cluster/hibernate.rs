//! Sleep: all pods stop, all data stays. Waking is `restart`'s ordinary work.

use super::record::Record;
use super::{Reason, Step, Stop, View, Work, pods};

/// Why the cluster cannot sleep.
pub(super) fn refuse(view: &View<'_>) -> Option<Step> {
    (view.intent.hibernate && !view.intent.is_durable()).then(|| {
        Step::new(
            Work::Blocked,
            Reason::CannotHibernate,
            "spec.hibernate needs durable storage: with ephemeral storage stopping the pods would lose all data. Set spec.hibernate to false",
        )
    })
}

pub(super) fn hibernate(view: &View<'_>, record: &mut Record) -> Option<Step> {
    if !view.intent.hibernate {
        record.hibernating = false;
        return None;
    }
    if !view.began() {
        // Nothing runs yet, or the first member is still coming: it finishes first, so that there is data to keep.
        return if view.record.bootstrap.is_none() {
            Some(Step::new(
                Work::Blocked,
                Reason::Hibernating,
                "spec.hibernate is true: the cluster is created when it is false",
            ))
        } else {
            None
        };
    }
    record.hibernating = true;
    record.quorum_lost = None;
    let stop: Vec<_> = view
        .world
        .pods
        .iter()
        .filter(|(_, pod)| !pod.terminating)
        .map(|(name, pod)| pods::stop(name, pod, Stop::Hibernate))
        .collect();
    Some(
        Step::new(
            Work::Blocked,
            Reason::Hibernating,
            "spec.hibernate is true: all pods are stopped, all data is kept",
        )
        .with(stop),
    )
}

#[cfg(test)]
mod tests {
    use crate::cluster::testing::three;
    use crate::cluster::{Reason, Storage};

    #[test]
    fn all_pods_stop_and_all_claims_stay() {
        let plan = three().spec(|intent| intent.hibernate = true).then(
            Reason::Hibernating,
            &[
                "delete pod c-a (Hibernate, uid pod-c-a)",
                "delete pod c-b (Hibernate, uid pod-c-b)",
                "delete pod c-c (Hibernate, uid pod-c-c)",
            ],
        );
        assert!(plan.record.hibernating && !plan.report.degraded.holds);
    }

    #[test]
    fn a_cluster_without_durable_data_does_not_sleep() {
        let given = three().spec(|intent| {
            intent.hibernate = true;
            intent.storage = Storage::Ephemeral;
        });
        let plan = given.then(Reason::CannotHibernate, &[]);
        assert!(plan.report.degraded.holds);
    }
}
