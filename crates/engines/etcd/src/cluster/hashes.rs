//! The data of members, compared by their hashes: what more than half of the voters have is the data of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::{Alarm, ClusterId, DataHash, Effect, Listed, MemberId, MemberList, MemberProbe, View, World};

/// What comparing the voters gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
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
pub(super) fn verdict(world: &World, list: &MemberList, is_lost: impl Fn(MemberId) -> bool) -> Verdict {
    let voters: BTreeSet<MemberId> = list.voters().map(|listed| listed.id).collect();
    let hashes: BTreeMap<MemberId, DataHash> = world
        .hashes
        .iter()
        .filter(|(id, _)| voters.contains(*id))
        .map(|(id, hash)| (*id, *hash))
        .collect();
    let versions: BTreeSet<_> = world
        .probes
        .values()
        .filter_map(|probe| match probe {
            MemberProbe::Reply(reply) if hashes.contains_key(&reply.id) => Some(&reply.version),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{MemberName, Reply};

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
            world.probes.insert(name, reply(id));
        }
        let list = MemberList {
            cluster: ClusterId(9),
            leader: Some(MemberId(1)),
            members,
        };
        (world, list)
    }

    fn reply(id: MemberId) -> MemberProbe {
        MemberProbe::Reply(Reply {
            id,
            cluster: ClusterId(9),
            leader: Some(MemberId(1)),
            learner: false,
            version: crate::api::EtcdVersion::new(3, 5, 35),
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
        if let Some(MemberProbe::Reply(reply)) = world.probes.get_mut(&MemberName("c-3".into())) {
            reply.version = crate::api::EtcdVersion::new(3, 5, 16);
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
