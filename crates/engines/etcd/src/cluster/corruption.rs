//! The CORRUPT alarm: members' data differs, or somebody says so. etcd does not tell reliably who is wrong, so the data of
//! the voters is compared: what more than half of them have is the data of the cluster.
//!
//! etcd refuses every write while the alarm is raised, for whichever member, and goes on to serve reads, to change members
//! and to move leadership (server/etcdserver/apply, 3.4 to 3.7). So hashes stand still and can be compared.

use std::collections::BTreeSet;

use super::hashes::{Verdict, verdict};
use super::members::{Health, owner};
use super::{Alarm, Effect, LATER, Listed, MemberId, MemberList, Note, Reason, Step, View, Work, hashes};

/// The data cannot be compared, since members run different versions: the roll that brings them to one goes on.
pub(super) fn needs_one_version(view: &View<'_>) -> bool {
    let corrupt = view
        .world
        .list
        .as_ref()
        .filter(|_| view.world.has_alarm(Alarm::Corrupt));
    let verdict = corrupt.map(|list| verdict(view.world, list, |id| is_lost(view, id)));
    // Whoever is lost would hold up the roll: taking it out copies no data.
    verdict == Some(Verdict::Versions) && !view.members.values().any(is_lost_member)
}

pub(super) fn corruption(view: &View<'_>) -> Option<Step> {
    let list = view
        .world
        .list
        .as_ref()
        .filter(|_| view.world.has_alarm(Alarm::Corrupt))?;
    let step = |message: String| Step::new(Work::Recovering, Reason::ComparingData, message).wake(LATER);
    let (of, differ, unknown) = match verdict(view.world, list, |id| is_lost(view, id)) {
        Verdict::Majority { of, differ, unknown } => (of, differ, unknown),
        Verdict::None => return Some(no_majority(view, list)),
        Verdict::Unknown(missing) => {
            let message = format!("{RAISED} Waiting for the hashes of {}", names(view, list, &missing));
            return Some(step(message));
        }
        Verdict::Versions if view.members.values().any(is_lost_member) => return None,
        Verdict::Versions => return Some(different_versions(view)),
        Verdict::Compactions => {
            let message = format!(
                "{RAISED} Waiting until all of them have done the same compactions: {}",
                listing(view, list)
            );
            return Some(step(message));
        }
    };
    // A new member copies its leader, so the leader must be one of the majority before anybody is added or begun.
    let leads = list.leader.filter(|leader| !of.contains(leader));
    if let Some(leader) = leads {
        let name = names(view, list, &BTreeSet::from([leader]));
        if unknown.contains(&leader) {
            return Some(step(format!("{RAISED} Waiting for the hash of the leader, {name}")));
        }
        let next = view
            .voters()
            .filter(|member| member.is_healthy() && member.listed.is_some_and(|listed| of.contains(&listed.id)))
            .max_by_key(|member| member.reply.map(|reply| reply.index));
        let message = format!("{RAISED} Leadership moves from {name} to a member with the data of the majority");
        let move_leader = next.and_then(|next| next.listed).map(|next| Effect::MoveLeader {
            from: leader,
            to: next.id,
            cluster: list.cluster,
        });
        return Some(step(message).with(move_leader));
    }
    if list.leader.is_none() {
        return Some(step(format!("{RAISED} Waiting for a leader")));
    }
    if view.members.values().any(is_lost_member) {
        return None; // `replace` takes them out, one at a time
    }
    if !differ.is_empty() {
        return Some(step(format!(
            "{RAISED} That of {} differs from the majority's. It is none of this cluster's pods: remove it with etcdctl member remove",
            names(view, list, &differ)
        )));
    }
    if !unknown.is_empty() {
        let message = format!("{RAISED} Waiting for the hashes of {}", names(view, list, &unknown));
        return Some(step(message));
    }
    // Learners refuse to be compared (only their promotion could tell, and it may cost the majority): one that has begun
    // to copy, from whoever led then, begins anew.
    let copied = |member: &&super::Member<'_>| {
        let listed = member.listed.filter(|listed| listed.learner);
        listed.is_some_and(|listed| listed.name.is_some() || member.pod.is_some_and(|pod| pod.ever_ran))
    };
    if let Some(member) = view.members.values().find(copied)
        && let Some(listed) = member.listed
    {
        let message = format!("{RAISED} Learner {} cannot be compared and begins anew", member.name);
        return Some(step(message).with([Effect::RemoveMember {
            member: member.name.clone(),
            id: listed.id,
            cluster: list.cluster,
            pod: member.pod.map(|pod| pod.uid.clone()),
            claim: member.claim.map(|claim| claim.uid.clone()),
        }]));
    }
    let raised = view.world.alarms.iter().filter(|(_, alarm)| *alarm == Alarm::Corrupt);
    let disarm = raised.map(|(id, alarm)| Effect::Disarm {
        id: *id,
        alarm: *alarm,
        cluster: list.cluster,
    });
    let note = Note {
        warning: true,
        reason: Reason::AlarmCleared,
        message: "the alarm CORRUPT is cleared: all members have the same data by their hashes".to_owned(),
    };
    Some(
        step("all members have the same data by their hashes: the alarm CORRUPT is cleared".to_owned())
            .with([hashes::guard(view, list.cluster)])
            .with(disarm)
            .with([Effect::Tell(note)]),
    )
}

const RAISED: &str = "etcd raised the alarm CORRUPT and takes no writes: the data of the members is compared.";

fn is_lost(view: &View<'_>, id: MemberId) -> bool {
    let mut members = view.members.values();
    members
        .any(|member| member.listed.is_some_and(|listed| listed.id == id) && matches!(member.health, Health::Lost(_)))
}

fn is_lost_member(member: &super::Member<'_>) -> bool {
    member.listed.is_some() && matches!(member.health, Health::Lost(_))
}

/// No roll is under way that would bring all members to one version. Members without durable data change their version by being
/// replaced, and a new one would copy data that may be wrong.
fn different_versions(view: &View<'_>) -> Step {
    let wait = format!(
        "{RAISED} Hashes of different versions of etcd cannot be compared: waiting until all members run one version"
    );
    if view.intent.is_durable() {
        return Step::new(Work::Recovering, Reason::ComparingData, wait).wake(LATER);
    }
    let message = format!(
        "{wait}. Without durable storage no member is restarted, and a new one would copy data that may be wrong: remove the members of one version with etcdctl member remove, one at a time, or restore the cluster from a backup (an EtcdRestore that names this cluster)"
    );
    Step::new(Work::Blocked, Reason::DataNotComparable, message).wake(LATER)
}

/// Nobody can say which data is right: nothing is changed.
fn no_majority(view: &View<'_>, list: &MemberList) -> Step {
    let message = format!(
        "etcd raised the alarm CORRUPT and takes no writes, and no data is that of more than half of the voters: {}. Nothing is changed. Restore the cluster from a backup (an EtcdRestore that names this cluster); or, if you know which member is right, remove the others with etcdctl member remove, one at a time",
        listing(view, list)
    );
    Step::new(Work::Blocked, Reason::DataDiffers, message).wake(LATER)
}

/// The hash of every voter.
fn listing(view: &View<'_>, list: &MemberList) -> String {
    let hash = |listed: &Listed| match view.world.hashes.get(&listed.id) {
        Some(hash) => format!("{hash}, compacted at {}", hash.compact_revision),
        None => "not known".to_owned(),
    };
    let each = list
        .voters()
        .map(|listed| format!("{} has {}", name(view, listed), hash(listed)));
    each.collect::<Vec<_>>().join("; ")
}

fn names(view: &View<'_>, list: &MemberList, ids: &BTreeSet<MemberId>) -> String {
    let named = list.members.iter().filter(|listed| ids.contains(&listed.id));
    named.map(|listed| name(view, listed)).collect::<Vec<_>>().join(", ")
}

fn name(view: &View<'_>, listed: &Listed) -> String {
    let name = owner(view.intent, listed).or_else(|| listed.name.clone());
    name.map_or_else(|| listed.id.to_string(), |name| name.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::DataHash;
    use crate::cluster::testing::{Given, three};

    /// CORRUPT is raised, and the members' data has these hashes.
    fn hashes(hashes: [u32; 3]) -> Given {
        three().world(|world| {
            world.alarms.insert((MemberId(0), Alarm::Corrupt));
            let known = (1..).map(MemberId).zip(hashes).map(|(id, hash)| {
                let (revision, compact_revision) = (7, 0);
                (
                    id,
                    DataHash {
                        revision,
                        compact_revision,
                        hash,
                    },
                )
            });
            world.hashes = known.collect();
        })
    }

    #[test]
    fn the_majority_has_the_data_of_the_cluster() {
        for (given, reason, effects) in [
            (
                "all are the same",
                [1, 1, 1],
                Reason::ComparingData,
                &["compare the data of 3 members again", "disarm Corrupt of 0"][..],
            ),
            (
                "a follower differs",
                [1, 1, 2],
                Reason::ReplacingMember,
                &["compare the data of 3 members again", "remove member c-c (3)"],
            ),
            (
                "the leader differs",
                [2, 1, 1],
                Reason::ComparingData,
                &["move leadership from 1 to 3"],
            ),
            ("nobody has a majority", [1, 2, 3], Reason::DataDiffers, &[]),
        ]
        .map(|(what, given, reason, effects)| ((what, hashes(given)), reason, effects))
        {
            println!("{}", given.0);
            given.1.then(reason, effects);
        }
    }

    #[test]
    fn members_of_different_versions_are_not_compared_and_a_roll_goes_on() {
        let given = hashes([1, 1, 2]).pod("c-b", |pod| pod.template = "old".into());
        let given = given.world(|world| {
            let other = world.probes.get_mut(&"c-b".into());
            if let Some(crate::cluster::MemberProbe::Reply(reply)) = other {
                reply.version = crate::cluster::testing::version("3.5.16");
            }
        });
        given.then(
            Reason::RollingRestart,
            &[
                "try pod c-b (etcd 3.5.35) without making it",
                "delete pod c-b (Restart, uid pod-c-b)",
            ],
        );
    }
}
