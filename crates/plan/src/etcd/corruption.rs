//! The CORRUPT alarm: members' data differs, or somebody says so. etcd does not tell reliably who is wrong, so the data of
//! the voters is compared: what more than half of them have is the data of the cluster.
//!
//! etcd refuses every write while the alarm is raised, for whichever member, and goes on to serve reads, to change members
//! and to move leadership (server/etcdserver/apply, 3.4 to 3.7). So hashes stand still and can be compared.

use std::collections::{BTreeMap, BTreeSet};

use super::members::{Fate, owner};
use super::record::Record;
use super::{
    Alarm, ClusterId, DataHash, Effect, LATER, Listed, MemberId, MemberList, Note, Reason, Step, View, Voice, Work,
    World, roll,
};

/// What comparing the voters gave.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// These have the data of the majority, those differ from it, and of those nothing is known.
    Majority {
        of: BTreeSet<MemberId>,
        differ: BTreeSet<MemberId>,
        unknown: BTreeSet<MemberId>,
    },
    /// No data is that of a majority, and none can become it.
    None,
    /// It is not known yet: these are missing.
    Unknown(BTreeSet<MemberId>),
    /// Hashes of different versions of etcd cannot be compared.
    Versions,
    /// Hashes before and after a compaction cannot be compared.
    Compactions,
}

pub(super) fn corruption(view: &View<'_>, record: &mut Record) -> Option<Step> {
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
        // Whoever is lost would hold up the roll: taking it out copies no data.
        Verdict::Versions if view.members.values().any(is_lost_member) => return None,
        // A version that is being rolled out goes on: that is how they come to be of one version.
        Verdict::Versions => return Some(roll::roll(view, record).unwrap_or_else(|| different_versions(view))),
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
            .max_by_key(|member| member.answer.map(|answer| answer.index));
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
            .with([guard(view, list.cluster)])
            .with(disarm)
            .with([Effect::Tell(note)]),
    )
}

const RAISED: &str = "etcd raised the alarm CORRUPT and takes no writes: the data of the members is compared.";

/// What a member's data is and what it should be, where it differs from that of the majority.
pub(super) fn differs(world: &World, listed: &Listed) -> Option<String> {
    let list = world.list.as_ref().filter(|_| world.has_alarm(Alarm::Corrupt))?;
    let Verdict::Majority { of, differ, .. } = verdict(world, list, |_| false) else {
        return None;
    };
    let (has, should) = (world.hashes.get(&listed.id)?, world.hashes.get(of.first()?)?);
    differ
        .contains(&listed.id)
        .then(|| format!("its hash is {has}, that of {} others is {should}", of.len()))
}

/// Refuses what follows unless the data is still what this round compared.
pub(super) fn guard(view: &View<'_>, cluster: ClusterId) -> Effect {
    Effect::CompareAgain {
        hashes: view.world.hashes.clone(),
        cluster,
    }
}

/// Compares the voters. `is_lost`: this one will never be heard.
fn verdict(world: &World, list: &MemberList, is_lost: impl Fn(MemberId) -> bool) -> Verdict {
    let voters: BTreeSet<MemberId> = list.voters().map(|listed| listed.id).collect();
    let hashes: BTreeMap<MemberId, DataHash> = world
        .hashes
        .iter()
        .filter(|(id, _)| voters.contains(*id))
        .map(|(id, hash)| (*id, *hash))
        .collect();
    let versions: BTreeSet<_> = world
        .voices
        .values()
        .filter_map(|voice| match voice {
            Voice::Answered(answer) if hashes.contains_key(&answer.id) => Some(&answer.version),
            _ => None,
        })
        .collect();
    if versions.len() > 1 {
        return Verdict::Versions;
    }
    let compactions: BTreeSet<i64> = hashes.values().map(|hash| hash.compact_revision).collect();
    if compactions.len() > 1 {
        return Verdict::Compactions;
    }
    let mut groups: BTreeMap<DataHash, BTreeSet<MemberId>> = BTreeMap::new();
    for (id, hash) in &hashes {
        groups.entry(*hash).or_default().insert(*id);
    }
    let unknown: BTreeSet<MemberId> = voters.iter().filter(|id| !hashes.contains_key(*id)).copied().collect();
    let largest = groups.into_values().max_by_key(BTreeSet::len).unwrap_or_default();
    let is_majority = |count: usize| 2 * count > voters.len();
    if is_majority(largest.len()) {
        let differ = hashes.keys().filter(|id| !largest.contains(*id)).copied().collect();
        return Verdict::Majority {
            of: largest,
            differ,
            unknown,
        };
    }
    let heard_later = unknown.iter().filter(|id| !is_lost(**id)).count();
    if is_majority(largest.len() + heard_later) {
        Verdict::Unknown(unknown)
    } else {
        Verdict::None
    }
}

fn is_lost(view: &View<'_>, id: MemberId) -> bool {
    let mut members = view.members.values();
    members.any(|member| member.listed.is_some_and(|listed| listed.id == id) && matches!(member.fate, Fate::Lost(_)))
}

fn is_lost_member(member: &super::Member<'_>) -> bool {
    member.listed.is_some() && matches!(member.fate, Fate::Lost(_))
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
    Step::new(Work::Stuck, Reason::DataNotComparable, message).wake(LATER)
}

/// Nobody can say which data is right: nothing is changed.
fn no_majority(view: &View<'_>, list: &MemberList) -> Step {
    let message = format!(
        "etcd raised the alarm CORRUPT and takes no writes, and no data is that of more than half of the voters: {}. Nothing is changed. Restore the cluster from a backup (an EtcdRestore that names this cluster); or, if you know which member is right, remove the others with etcdctl member remove, one at a time",
        listing(view, list)
    );
    Step::new(Work::Stuck, Reason::DataDiffers, message).wake(LATER)
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
    use crate::etcd::{Answer, MemberName};

    fn ids(ids: &[u64]) -> BTreeSet<MemberId> {
        ids.iter().copied().map(MemberId).collect()
    }

    /// Voters 1, 2, 3 … with these hashes, where they are known, of one version.
    fn world(hashes: &[Option<u32>]) -> (World, MemberList) {
        let mut world = World {
            alarms: BTreeSet::from([(MemberId(0), Alarm::Corrupt)]),
            ..World::default()
        };
        let mut members = Vec::new();
        for (id, hash) in (1..).map(MemberId).zip(hashes) {
            let name = MemberName(format!("c-{id}"));
            members.push(Listed {
                id,
                name: Some(name.clone()),
                peer_urls: Vec::new(),
                learner: false,
            });
            if let Some(hash) = *hash {
                let hash = DataHash {
                    revision: 7,
                    compact_revision: 0,
                    hash,
                };
                world.hashes.insert(id, hash);
            }
            world.voices.insert(name, answer(id));
        }
        let list = MemberList {
            cluster: ClusterId(9),
            leader: Some(MemberId(1)),
            members,
        };
        (world, list)
    }

    fn answer(id: MemberId) -> Voice {
        Voice::Answered(Answer {
            id,
            cluster: ClusterId(9),
            leader: Some(MemberId(1)),
            learner: false,
            version: stateward_api::EtcdVersion::new(3, 5, 35),
            storage_minor: None,
            cluster_minor: None,
            downgrading: None,
            term: 1,
            index: 1,
            db_size: 0,
            db_in_use: 0,
            list: Vec::new(),
        })
    }

    fn majority(of: &[u64], differ: &[u64], unknown: &[u64]) -> Verdict {
        Verdict::Majority {
            of: ids(of),
            differ: ids(differ),
            unknown: ids(unknown),
        }
    }

    #[test]
    fn more_than_half_of_the_voters_decide() {
        let (a, b) = (Some(1), Some(2));
        for (hashes, verdict_is) in [
            (&[a][..], majority(&[1], &[], &[])),
            (&[a, a, a], majority(&[1, 2, 3], &[], &[])),
            (&[b, a, a], majority(&[2, 3], &[1], &[])),
            (&[a, a, None], majority(&[1, 2], &[], &[3])),
            (&[a, b], Verdict::None),
            (&[a, b, Some(3)], Verdict::None),
            (&[a, a, b, b], Verdict::None),
            (&[a, b, None], Verdict::Unknown(ids(&[3]))),
            (&[None, None, None], Verdict::Unknown(ids(&[1, 2, 3]))),
        ] {
            let (world, list) = world(hashes);
            assert_eq!(verdict(&world, &list, |_| false), verdict_is, "{hashes:?}");
        }
        // One that is lost for good is not waited for.
        let (world, list) = world(&[a, b, None]);
        assert_eq!(verdict(&world, &list, |id| id == MemberId(3)), Verdict::None);
    }

    #[test]
    fn only_like_is_compared_with_like() {
        // given members that differ, when one runs another version
        let (mut world, list) = world(&[Some(1), Some(1), Some(2)]);
        let compared = world.clone();
        if let Some(Voice::Answered(answer)) = world.voices.get_mut(&MemberName("c-3".into())) {
            answer.version = stateward_api::EtcdVersion::new(3, 5, 16);
        }
        // then nothing follows
        assert_eq!(verdict(&world, &list, |_| false), Verdict::Versions);
        // and when one has not done the last compaction, nothing follows either
        let mut world = compared;
        if let Some(hash) = world.hashes.get_mut(&MemberId(3)) {
            hash.compact_revision = 5;
        }
        assert_eq!(verdict(&world, &list, |_| false), Verdict::Compactions);
        // A learner is in no list of voters, whatever is known of it.
        if let Some(hash) = world.hashes.get_mut(&MemberId(3)) {
            hash.compact_revision = 0;
        }
        let mut list = list;
        list.members[2].learner = true;
        assert_eq!(verdict(&world, &list, |_| false), majority(&[1, 2], &[], &[]));
    }
}
