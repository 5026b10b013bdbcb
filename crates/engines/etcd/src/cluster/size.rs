//! How many members there shall be now, and who of them leaves.

use super::{Member, View, pods};

/// The size to reach now: one more while a healthy member is to be replaced, so that fault tolerance never drops.
pub(super) fn wanted(view: &View<'_>) -> usize {
    view.intent.size + usize::from(view.voters().any(|member| leaves(view, member)))
}

/// A healthy member that must go: the user marked it, or it cannot restart with new settings and keep its data.
pub(super) fn leaves(view: &View<'_>, member: &Member<'_>) -> bool {
    member.pod.is_some_and(|pod| {
        pod.marked_to_leave || (!view.intent.is_durable() && pods::made_otherwise(view, &member.name, pod))
    })
}
