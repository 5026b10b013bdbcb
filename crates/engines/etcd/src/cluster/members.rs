//! One line per member: what the list says, what Kubernetes shows, what the member said, and what follows for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::api::EtcdVersion;

use super::intent::Intent;
use super::record::Record;
use super::world::{Claim, Listed, MemberList, MemberName, MemberProbe, NoReply, Pod, Reply, World};

/// A crash loop is judged only after so many restarts: one crash proves nothing.
const CRASHES_THAT_COUNT: u32 = 3;
/// A crash loop with a reason that we do not know is judged later.
pub(super) const CRASHES_OF_UNKNOWN_REASON: u32 = 6;

/// Everything known of one member.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Its name.
    pub name: MemberName,
    /// Its line of the proven list.
    pub listed: Option<&'a Listed>,
    /// Its pod.
    pub pod: Option<&'a Pod>,
    /// Its claim.
    pub claim: Option<&'a Claim>,
    /// Its own words.
    pub reply: Option<&'a Reply>,
    /// Why it was silent when asked.
    pub why_no_reply: Option<&'a NoReply>,
    /// What follows.
    pub health: Health,
}

/// The state of a member, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers and sees a leader.
    Healthy,
    /// Added to the list, never started.
    Unstarted,
    /// It does not answer now and nothing proves that it never will: wait, with this reason.
    Unavailable(String),
    /// It will never come back as it was: proven.
    Lost(LossEvidence),
}

/// Why a member is held for lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossEvidence {
    /// Its claim, and so its data, is gone.
    ClaimGone,
    /// Its volume is empty: etcd itself said so.
    DataGone,
    /// etcd cannot read its data: the last words.
    DataBroken(String),
    /// It ends again and again, though others run well with the same settings.
    CrashLoop(String),
    /// Its data differs from that of the majority, by their hashes: what differs.
    Corrupt(String),
    /// Its node is dead for longer than allowed.
    NodeDead(String),
    /// Its pod, and with it its data, is gone (ephemeral storage).
    PodGone,
    /// Its volume can be used on no node that exists, for longer than a node may be dead.
    VolumeStranded,
    /// Its volume is on a node that takes no pods, and has been for too long.
    NodeCordoned,
}

impl LossEvidence {
    /// In words.
    pub fn words(&self) -> String {
        match self {
            Self::ClaimGone => "its claim is gone, and its data with it".into(),
            Self::DataGone => "its volume is empty".into(),
            Self::DataBroken(last) => format!("etcd cannot read its data: {last}"),
            Self::CrashLoop(last) => format!("it crashes again and again: {last}"),
            Self::Corrupt(how) => format!("its data differs from that of the majority: {how}"),
            Self::NodeDead(node) => format!("its node {node} has been dead for longer than allowed"),
            Self::VolumeStranded => "its volume can be used on no node that exists".into(),
            Self::NodeCordoned => "its volume is on a node that is cordoned".into(),
            Self::PodGone => "its pod is gone, and its ephemeral data with it".into(),
        }
    }
}

impl Member<'_> {
    /// It votes by the list.
    pub fn is_voter(&self) -> bool {
        self.listed.is_some_and(|listed| !listed.learner)
    }

    /// It knows the call that hands leadership over (3.3 and later); without it the others elect when it stops.
    pub fn can_hand_over(&self) -> bool {
        self.reply.is_none_or(|reply| reply.version.at_least(3, 3, 0))
    }

    /// Somebody deleted its pod.
    pub fn is_stopping(&self) -> bool {
        self.pod.is_some_and(|pod| pod.terminating)
    }

    /// It answers, sees a leader and does not stop.
    pub fn is_healthy(&self) -> bool {
        self.health == Health::Healthy
    }
}

/// The member that a line of a list belongs to: by its name, or by its URL before it has started.
pub fn owner(intent: &Intent, listed: &Listed) -> Option<MemberName> {
    listed.peer_urls.iter().find_map(|url| intent.member_of_url(url))
}

/// What a member that is not ours is called.
pub(super) fn display_name(listed: &Listed) -> MemberName {
    listed.name.clone().unwrap_or_else(|| MemberName(listed.id.to_string()))
}

/// The lines of a list as names and URLs, as `--initial-cluster` wants them. A member that is not ours keeps its name.
pub fn initial_cluster(intent: &Intent, members: &[Listed]) -> Vec<(MemberName, String)> {
    members
        .iter()
        .flat_map(|listed| {
            let name = owner(intent, listed)
                .or_else(|| listed.name.clone())
                .unwrap_or_else(|| MemberName(listed.id.to_string()));
            listed.peer_urls.iter().map(move |url| (name.clone(), url.clone()))
        })
        .collect()
}

/// All members, by name: those of the list, or without one those remembered, and whatever has a pod or claim.
pub fn judge<'a>(
    intent: &Intent,
    record: &Record,
    world: &'a World,
    now: Timestamp,
) -> BTreeMap<MemberName, Member<'a>> {
    let mut listed: BTreeMap<MemberName, &Listed> = BTreeMap::new();
    if let Some(list) = &world.list {
        listed.extend(
            list.members
                .iter()
                .filter_map(|line| Some((owner(intent, line)?, line))),
        );
    }
    let names: BTreeSet<&MemberName> = listed
        .keys()
        .chain(world.pods.keys())
        .chain(
            world
                .claims
                .iter()
                .filter(|(name, claim)| !is_kept(intent, record, world, name, claim))
                .map(|(name, _)| name),
        )
        .chain(record.members.keys().filter(|_| world.list.is_none()))
        .collect();
    let healthy_templates: BTreeSet<Settings<'_>> = world
        .pods
        .iter()
        .filter(|(name, _)| matches!(world.probes.get(name), Some(MemberProbe::Reply(reply)) if reply.leader.is_some()))
        .map(|(_, pod)| settings(pod))
        .collect();
    names
        .into_iter()
        .map(|name| {
            let (reply, why_no_reply) = match world.probes.get(name) {
                Some(MemberProbe::Reply(reply)) => (Some(reply), None),
                Some(MemberProbe::NoReply(why)) => (None, Some(why)),
                None => (None, None),
            };
            let mut member = Member {
                name: name.clone(),
                listed: listed.get(name).copied(),
                pod: world.pods.get(name),
                claim: world.claims.get(name),
                reply,
                why_no_reply,
                health: Health::Unstarted,
            };
            member.health = health(intent, record, world, &member, &healthy_templates, now);
            (name.clone(), member)
        })
        .collect()
}

/// A claim of a member that a restore replaced, which the user keeps: nothing is done with it any more. Before the new cluster
/// serves it is still the way back.
fn is_kept(intent: &Intent, record: &Record, world: &World, name: &MemberName, claim: &Claim) -> bool {
    let mut replaced = record.replaced_claims.iter();
    intent.retain_claims && !world.pods.contains_key(name) && replaced.any(|(_, uid)| *uid == claim.uid)
}

/// What a pod was made from: wishes and version.
type Settings<'a> = (&'a str, &'a EtcdVersion);

fn settings(pod: &Pod) -> Settings<'_> {
    (&pod.template, &pod.version)
}

fn health(
    intent: &Intent,
    record: &Record,
    world: &World,
    member: &Member<'_>,
    healthy_templates: &BTreeSet<Settings<'_>>,
    now: Timestamp,
) -> Health {
    if let (Some(listed), Some(_)) = (member.listed, member.reply)
        && let Some(how) = super::hashes::differs(world, listed)
    {
        return Health::Lost(LossEvidence::Corrupt(how));
    }
    if let Some(reply) = member.reply {
        let right_cluster = world.list.as_ref().is_none_or(|list| list.cluster == reply.cluster);
        let right_id = member.listed.is_none_or(|listed| listed.id == reply.id);
        if !right_cluster || !right_id {
            return Health::Unavailable(format!(
                "it answers as {} of cluster {}, which is not who it should be",
                reply.id, reply.cluster
            ));
        }
        return if member.is_stopping() {
            // Whoever deletes it does not ask: nothing is begun that would miss it in a moment.
            Health::Unavailable("its pod is stopping".into())
        } else if reply.leader.is_some() {
            Health::Healthy
        } else {
            Health::Unavailable("it sees no leader".into())
        };
    }
    // Without a proven list the most advanced of those that answer is believed.
    let by_word = || {
        let answers = world.probes.values().filter_map(|probe| match probe {
            MemberProbe::Reply(reply) => Some(reply),
            MemberProbe::NoReply(_) => None,
        });
        answers.max_by_key(|reply| reply.index).is_some_and(|most| {
            most.list
                .iter()
                .any(|listed| listed.name.is_none() && owner(intent, listed).as_ref() == Some(&member.name))
        })
    };
    let unstarted = match member.listed {
        Some(listed) => listed.name.is_none(),
        None => world.list.is_none() && by_word(),
    };
    let node_dead = member
        .pod
        .and_then(|pod| pod.node.as_ref())
        .and_then(|node| Some((node, world.dead_nodes.get(node)?)));
    if let Some((node, since)) = node_dead
        && lasted(*since, now, world.watched.dead_nodes.get(node)) >= intent.replace_after
    {
        return Health::Lost(LossEvidence::NodeDead(node.clone()));
    }
    if !intent.is_durable() {
        // Without a claim the data lives and dies with the pod.
        return match member.pod {
            None if unstarted => Health::Unstarted,
            None => Health::Lost(LossEvidence::PodGone),
            Some(pod) if pod.ended || (pod.terminating && node_dead.is_none()) => Health::Lost(LossEvidence::PodGone),
            Some(pod) => from_pod(pod, member, unstarted, healthy_templates),
        };
    }
    let began = record.began();
    // One of a quorum once, whose name the others have not heard: without a quorum now, nobody can say that it had no data.
    let took_part = world.list.is_none() && record.members.get(&member.name).is_some_and(|known| known.voter);
    match (member.pod, member.claim) {
        (_, Some(claim)) if claim.lost && began => Health::Lost(LossEvidence::ClaimGone),
        (None, None) if (unstarted && !took_part) || !began => Health::Unstarted,
        (None, None) => Health::Lost(LossEvidence::ClaimGone),
        (None, Some(claim)) if claim.terminating => Health::Unavailable("its claim is being deleted".into()),
        (None, Some(_)) if unstarted => Health::Unstarted,
        (None, Some(_)) => Health::Unavailable("its pod is gone".into()),
        // A pod that waits for a claim that is not there will never run: the claim was deleted under it.
        (Some(pod), None) if began && !unstarted && pod.node.is_none() && pod.blocked.is_some() && !pod.terminating => {
            Health::Lost(LossEvidence::ClaimGone)
        }
        (Some(pod), Some(claim)) if began && claim.bound && pod.node.is_none() => {
            match beyond_reach(intent, world, pod, now) {
                // Somebody may open the node again, or make one that can use the volume: the data is there, and this is no
                // reason to give a quorum up.
                Some(LossEvidence::NodeCordoned) if world.list.is_none() => {
                    from_pod(pod, member, unstarted, healthy_templates)
                }
                Some(LossEvidence::VolumeStranded) if world.list.is_none() && !unstarted => {
                    from_pod(pod, member, unstarted, healthy_templates)
                }
                Some(proof) => Health::Lost(proof),
                None => from_pod(pod, member, unstarted, healthy_templates),
            }
        }
        (Some(pod), _) => from_pod(pod, member, unstarted, healthy_templates),
    }
}

/// No node can use the volume of this pod, and has not for longer than a node may be dead.
fn beyond_reach(intent: &Intent, world: &World, pod: &Pod, now: Timestamp) -> Option<LossEvidence> {
    let waited = lasted(pod.created, now, world.watched.unscheduled.get(&pod.uid));
    let blocked = pod.blocked.as_ref().filter(|_| waited >= intent.replace_after);
    out_of_reach(&blocked?.message)
}

/// The member waits for a node that can use its volume.
pub(super) fn is_stranded(view: &super::View<'_>, member: &Member<'_>) -> bool {
    let waits = member.pod.filter(|pod| pod.node.is_none() && member.claim.is_some());
    waits.is_some_and(|pod| beyond_reach(view.intent, view.world, pod, view.now).is_some())
}

/// What the scheduler's words say of a volume that no node can use, such as "0/3 nodes are available: 1 node(s) were
/// unschedulable, 2 node(s) had volume node affinity conflict": the node that it is on does not exist any more, or somebody
/// closed it. Then a drain waits for us too, where another member is on that node. A node that is only dead or full is
/// counted with another reason, and there is nothing to say.
fn out_of_reach(message: &str) -> Option<LossEvidence> {
    let (all, reasons) = message.strip_prefix("0/")?.split_once(" nodes are available: ")?;
    let all: u32 = all.parse().ok().filter(|all| *all > 0)?;
    let (mut elsewhere, mut cordoned) = (0, 0);
    for reason in reasons.split(". ").next()?.trim_end_matches('.').split(", ") {
        let (count, words) = reason.split_once(' ')?;
        let count: u32 = count.parse().ok()?;
        match words {
            "node(s) had volume node affinity conflict" | "node(s) didn't match PersistentVolume's node affinity" => {
                elsewhere += count;
            }
            "node(s) were unschedulable" => cordoned += count,
            _ => return None,
        }
    }
    match (elsewhere + cordoned == all, cordoned) {
        (false, _) => None,
        (true, 0) => Some(LossEvidence::VolumeStranded),
        (true, _) if elsewhere > 0 => Some(LossEvidence::NodeCordoned),
        (true, _) => None, // every node is closed: nobody could take its place
    }
}

fn from_pod(pod: &Pod, member: &Member<'_>, unstarted: bool, healthy_templates: &BTreeSet<Settings<'_>>) -> Health {
    if let Some(exit) = &pod.last_exit
        && exit.code != 0
        && !pod.terminating
        // What runs again has outlived its last end, however often there was one.
        && !pod.running
    {
        let needs_data = matches!(
            pod.launch,
            super::world::LaunchKind::Sealed | super::world::LaunchKind::Restore
        );
        if !unstarted && needs_data && says_no_data(&exit.message) {
            return Health::Lost(LossEvidence::DataGone);
        }
        if !unstarted && pod.launch == super::world::LaunchKind::Static && says_was_there_before(&exit.message) {
            return Health::Lost(LossEvidence::DataGone);
        }
        if !unstarted && pod.launch == super::world::LaunchKind::Join && says_joins_without_data(&exit.message) {
            return Health::Lost(LossEvidence::DataGone);
        }
        // Others run well with the same settings, so the settings are not the reason.
        let settings_are_good = healthy_templates.contains(&settings(pod));
        if pod.restarts >= CRASHES_THAT_COUNT
            && let Some(words) = says_broken_data(&exit.message, settings_are_good)
        {
            return Health::Lost(LossEvidence::DataBroken(words));
        }
        if pod.restarts >= CRASHES_OF_UNKNOWN_REASON && settings_are_good {
            return Health::Lost(LossEvidence::CrashLoop(last_line(&exit.message)));
        }
    }
    if unstarted && !pod.running {
        return Health::Unstarted;
    }
    let why = if pod.terminating {
        "its pod is stopping".to_owned()
    } else if let Some(blocked) = &pod.blocked {
        format!("its pod waits: {}: {}", blocked.reason, blocked.message)
    } else if !pod.running {
        "its pod is starting".to_owned()
    } else {
        format!(
            "its pod runs but it does not answer: {}",
            member
                .why_no_reply
                .map_or("not asked yet", |why_no_reply| why_no_reply.words.as_str())
        )
    };
    Health::Unavailable(why)
}

/// A sealed member without data knows no peer but itself, and etcd ends with this (3.2 to 3.7).
pub(super) fn says_no_data(message: &str) -> bool {
    message.contains("cannot fetch cluster info from peer urls")
}

/// A first member without data that the other first members know already: it had data, and lost it.
fn says_was_there_before(message: &str) -> bool {
    message.contains("has already been bootstrapped")
}

/// Only a member without data compares its initial cluster with its peers' list (3.2 to 3.7).
fn says_joins_without_data(message: &str) -> bool {
    message.contains("error validating peerURLs")
}

/// What etcd, its log and its database say when they cannot read their files. Some of it another version or another
/// setting could say too; that counts only where others run well with the same.
fn says_broken_data(message: &str, settings_are_good: bool) -> Option<String> {
    const SIGNS_OF_BROKEN_FILES: &[&str] = &[
        "crc mismatch",
        "checksum error",
        "freepages",
        "invalid page",
        "already freed",
    ];
    const SIGNS: &[&str] = &[
        "failed to read WAL",
        "cannot be repaired",
        "failed to recover v3 backend",
        "failed to recover from snapshot",
        "failed to recover v2 store",
        "invalid database",
        "file size too small",
        "version mismatch",
        "assertion failed",
        "wal: ",
        "snap: ",
        "is corrupt",
        "corrupted",
        "unexpected EOF",
        "data may be corrupt",
        "database file",
        "slice bounds out of range",
        "found data inconsistency",
        "tocommit",
    ];
    message
        .lines()
        .rev()
        .find(|line| {
            let says = |signs: &[&str]| signs.iter().any(|sign| line.contains(sign));
            says(SIGNS_OF_BROKEN_FILES) || (settings_are_good && says(SIGNS))
        })
        .or_else(|| panicked_at_start(message).filter(|_| settings_are_good))
        .map(shorten)
}

/// A panic of the first goroutine, which only starts the server and then waits: etcd met something in its files that it holds
/// for impossible. The words stand above the trace.
fn panicked_at_start(message: &str) -> Option<&str> {
    let words = message.lines().find(|line| line.starts_with("panic: "))?;
    message.contains("goroutine 1 [running]").then_some(words)
}

fn last_line(message: &str) -> String {
    let panic = message.lines().find(|line| line.starts_with("panic: "));
    panic
        .or_else(|| message.lines().rev().find(|line| !line.trim().is_empty()))
        .map(shorten)
        .unwrap_or_else(|| "no last words".into())
}

fn shorten(line: &str) -> String {
    let line = line.trim();
    match line.char_indices().nth(240) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The time between two moments, zero if the clock went back.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// For how long something has been so: by the clock, and by what this operator has itself seen. The clock that wrote the
/// timestamp, or this one, may be wrong.
fn lasted(since: Timestamp, now: Timestamp, watched: Option<&Duration>) -> Duration {
    elapsed(since, now).min(watched.copied().unwrap_or_default())
}

/// How many voters of a list answer and see a leader.
pub fn healthy_voters(list: &MemberList, members: &BTreeMap<MemberName, Member<'_>>) -> usize {
    members
        .values()
        .filter(|member| member.is_voter() && member.is_healthy())
        .count()
        .min(list.voters().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_passed_only_where_the_operator_saw_it_pass() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let seconds = jiff::SignedDuration::from_secs;
        let (limit, since) = (Duration::from_secs(300), now - seconds(10));
        // Given a node that is dead for 10 s, and an operator that has seen it for as long
        let seen = Duration::from_secs(10);
        // whose clock is right, 300 s ahead, or behind:
        for skew in [0, 300, -300] {
            let lasted = lasted(since, now + seconds(skew), Some(&seen));
            assert!(lasted <= seen && lasted < limit, "{skew}: {lasted:?}");
        }
        // an operator that was started just now has seen nothing,
        assert_eq!(lasted(now - seconds(3600), now, None), Duration::ZERO);
        // and a timestamp that a clock in the future wrote does not hold it up longer than the clock is wrong.
        let long = Duration::from_secs(3600);
        assert_eq!(
            lasted(now + seconds(300), now + seconds(3600), Some(&long)),
            Duration::from_secs(3300)
        );
    }

    #[test]
    fn an_operator_whose_clock_is_ahead_waits_like_any_other_for_a_node() {
        use crate::cluster::testing::{Given, three};
        // Given a member on a node that is dead for 10 s, as both the clock and the operator say
        let given = three().silent("c-b");
        let since = given.now - jiff::SignedDuration::from_secs(10);
        let seen = |given: Given, time| {
            given.world(|world| {
                world.watched.dead_nodes.insert("node-of-c-b".into(), time);
            })
        };
        let given = given.world(|world| {
            world.dead_nodes.insert("node-of-c-b".into(), since);
        });
        let is_lost = |mut given: Given, skew: i64| {
            given.now += jiff::SignedDuration::from_secs(skew);
            given.look(|view| matches!(view.members[&"c-b".into()].health, Health::Lost(_)))
        };
        // when its clock is ahead by nodeLossSeconds, then that changes nothing
        let patience = given.intent.replace_after;
        let ahead = i64::try_from(patience.as_secs()).expect("seconds");
        let early = seen(given.clone(), Duration::from_secs(10));
        assert!(!is_lost(early.clone(), 0) && !is_lost(early, ahead));
        // and when the time has passed, then it is lost.
        assert!(is_lost(seen(given, patience), ahead));
    }

    #[test]
    fn a_volume_is_out_of_reach_only_where_the_scheduler_counts_every_node() {
        let words = |reasons: &str| out_of_reach(&format!("0/3 nodes are available: {reasons}"));
        let more = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.";
        // given the words of old and new schedulers, when no node has the volume
        let old = words("3 node(s) had volume node affinity conflict.");
        let new = words(&format!(
            "3 node(s) didn't match PersistentVolume's node affinity. {more}"
        ));
        // then it is stranded
        assert_eq!(
            (old, new),
            (Some(LossEvidence::VolumeStranded), Some(LossEvidence::VolumeStranded))
        );
        // when the one that has it is closed, then that is said
        let closed =
            format!("1 node(s) were unschedulable, 2 node(s) didn't match PersistentVolume's node affinity. {more}");
        assert_eq!(words(&closed), Some(LossEvidence::NodeCordoned));
        // when it is only dead or full, or when every node is closed, then nothing is proven
        assert_eq!(
            words("1 node(s) had untolerated taint(s), 2 node(s) had volume node affinity conflict."),
            None
        );
        assert_eq!(
            words("1 Insufficient cpu, 2 node(s) had volume node affinity conflict."),
            None
        );
        assert_eq!(words(&format!("3 node(s) were unschedulable. {more}")), None);
        assert_eq!(out_of_reach("0/0 nodes are available: "), None);
    }

    #[test]
    fn a_panic_while_starting_is_told_by_its_words_and_not_by_its_trace() {
        // given the last words of an etcd 3.5 whose log lost its first record
        let message = "{\"level\":\"info\",\"msg\":\"restarting local member\"}\npanic: cannot use none as id\n\n\
                       goroutine 1 [running]:\ngo.etcd.io/etcd/raft/v3.newRaft(0x1b70dac8be88)\n\t/raft.go:320 +0xb74\n";
        // when others run well with the same settings, then its data is broken
        let words = Some("panic: cannot use none as id".to_owned());
        assert_eq!(says_broken_data(message, true), words);
        assert_eq!(Some(last_line(message)), words);
        // and when they do not, the settings may be the reason
        assert_eq!(says_broken_data(message, false), None);
        // and a panic under way, in another goroutine, proves nothing about the files
        let later = message.replace("goroutine 1 ", "goroutine 77 ");
        assert_eq!(says_broken_data(&later, true), None);
    }
}
