//! etcd: what to do next, decided from what the user wants, what must be remembered and what was observed.
//!
//! Chapters of the operations manual decide, one file each; `decide` says in which order they are asked. The first that has
//! something to do decides the round, and the next round starts from observation again. No chapter calls another: what
//! several of them need is in files of its own (`pods`, `members`, `gone`, `quorum`, `requests`, …).

mod adopt;
mod backups;
mod bootstrap;
mod cleanup;
mod corruption;
mod effect;
pub mod facts;
mod gone;
mod grow;
pub mod guard;
mod hashes;
mod hibernate;
mod intent;
mod join;
mod kind;
mod maintenance;
pub mod manifests;
pub mod members;
mod old_claims;
mod order;
mod pods;
mod quorum;
mod record;
mod recover;
mod replace;
mod report;
mod requests;
mod restart;
mod restore;
mod rollout;
mod rotation;
mod seal;
mod secure;
mod services;
mod shrink;
mod size;
pub mod status;
#[cfg(test)]
mod testing;
mod trouble;
mod upgrade;
mod upgrade_path;
mod wait;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::EtcdVersion;
use jiff::Timestamp;

pub use crate::reason::Reason;
pub use effect::{Effect, Launch, Note, Stop};
pub use intent::{Bootstrap, Defragmentation, Intent, Recovery, ServiceHashes, Storage};
pub use kind::{Cluster, Settings};
use members::Member;
pub use order::{Order, Write};
pub use record::{
    Bootstrapped, CrashReplaced, Defragmented, LastSeen, OldClaims, OldLog, Record, Recovering, Remembered,
    RestoreStep, Restoring,
};
pub use report::{MemberLine, Report, Statement};
pub use upgrade_path::{PathRefused, check_path};
pub use world::{
    Alarm, BackupPoint, Blocked, Ca, Claim, ClusterId, DataHash, Exit, KeptBackup, LaunchKind, Listed, MemberId,
    MemberList, MemberName, MemberProbe, NoReply, NoReplyKind, NodeEnd, Pod, Reply, RequestState, RestoreRequest,
    Secrets, Services, TlsStage, Trust, Uid, UpgradeBackup, Watched, World,
};

/// What a round decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What to remember. Written, with the report, before the effects.
    pub record: Record,
    /// What the user sees.
    pub report: Report,
    /// What to carry out, in order.
    pub effects: Vec<Effect>,
    /// When to look again even if nothing is heard. `None`: at the slow resync.
    pub wake: Option<Duration>,
    /// What is waited for is a word of a silent member: whoever is told of that by itself may look later.
    pub awaits_word: bool,
}

/// One chapter's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Step {
    effects: Vec<Effect>,
    /// What is being done or waited for, in words.
    doing: Option<Doing>,
    wake: Option<Duration>,
    awaits_word: bool,
}

/// What kind of work a step belongs to, and the words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Doing {
    work: Work,
    reason: Reason,
    /// A sentence: what is done or waited for, and where it helps, what to do.
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Bringing the cluster up.
    Creating,
    /// Changing its size.
    Scaling,
    /// Changing its version.
    Upgrading,
    /// Bringing lost things back.
    Recovering,
    /// Any other change of settings.
    Changing,
    /// It stands still until somebody does something.
    Blocked,
}

impl Step {
    fn new(work: Work, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            effects: Vec::new(),
            doing: Some(Doing {
                work,
                reason,
                message: message.into(),
            }),
            wake: None,
            awaits_word: false,
        }
    }

    fn with(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects.extend(effects);
        self
    }

    fn wake(mut self, after: Duration) -> Self {
        self.wake = Some(after);
        self
    }

    /// Waits for a member's word.
    fn until_word(mut self) -> Self {
        self.awaits_word = true;
        self.wake(SOON)
    }
}

/// How soon to ask again whether a process that was just started answers.
const SOON: Duration = Duration::from_millis(50);
/// How soon to ask again after etcd refused something for now, or while something outside takes its time.
pub const LATER: Duration = Duration::from_millis(500);

/// Everything a chapter may look at.
struct View<'a> {
    intent: &'a Intent,
    world: &'a World,
    record: &'a Record,
    now: Timestamp,
    members: BTreeMap<MemberName, Member<'a>>,
    /// The version that pods are made with: the accepted target.
    version: EtcdVersion,
    /// The version of pods that are made now: still the running one until the members are ready for another minor.
    new_pods: EtcdVersion,
    /// Why the version in the spec is not followed.
    refused: Option<PathRefused>,
    /// How far TLS between peers is on in the pods that are made now.
    stage: TlsStage,
}

impl View<'_> {
    /// The cluster has answered once: nothing starts as a first member any more.
    fn began(&self) -> bool {
        self.record.began()
    }

    fn voters(&self) -> impl Iterator<Item = &Member<'_>> {
        self.members.values().filter(|member| member.is_voter())
    }

    /// How many members of the list are ours. Strangers are left alone: they neither fill a place nor take one.
    fn listed(&self) -> usize {
        self.members.values().filter(|member| member.listed.is_some()).count()
    }

    fn leader(&self) -> Option<MemberId> {
        self.world.list.as_ref().and_then(|list| list.leader)
    }

    /// How far TLS is on in this member's pod: it must listen as the list tells its peers.
    fn stage_of(&self, member: &MemberName) -> TlsStage {
        match self.record.members.get(member) {
            Some(known) if known.peer_url.starts_with("https:") => TlsStage::On,
            Some(_) if self.stage == TlsStage::On => TlsStage::Prepared,
            _ => self.stage,
        }
    }

    /// The list as the most advanced of the members that answer knows it. It may be old.
    fn believed_list(&self) -> Option<&[Listed]> {
        let answers = self.world.probes.values().filter_map(|probe| match probe {
            MemberProbe::Reply(reply) => Some(reply),
            MemberProbe::NoReply(_) => None,
        });
        let most = answers.max_by_key(|reply| reply.index)?;
        Some(&most.list)
    }

    /// Every voter of the list answers, strangers included only by being few enough not to matter.
    fn all_voters_healthy(&self) -> bool {
        self.voters().all(Member::is_healthy)
    }
}

/// Decides one round.
pub fn plan(intent: &Intent, record: &Record, world: &World, now: Timestamp) -> Plan {
    let mut record = record.clone();
    remember(intent, &mut record, world, now);
    let (version, refused) = upgrade_path::accepted(intent, &record, world);
    let version = backups::hold(intent, &mut record, world, version);
    if record.bootstrap.is_some() {
        record.target = Some(version.clone());
    } else if record.target.is_none() {
        record.target.clone_from(&record.current); // As it is read back from the status.
    }
    let members = members::judge(intent, &record, world, now);
    let mut next = record.clone();
    let view = View {
        intent,
        world,
        record: &record,
        now,
        members,
        new_pods: upgrade_path::of_new_pods(&record, &version),
        version,
        refused,
        stage: rotation::stage(intent, world),
    };
    let mut step = decide(&view, &mut next);
    if let Some(cluster) = next.bootstrap.as_ref().and_then(|bootstrap| bootstrap.cluster) {
        next.has_been(cluster);
    }
    let trouble = trouble::trouble(&view);
    step.effects.extend(trouble.found.as_ref().map(trouble::Trouble::event));
    step.wake = step.wake.into_iter().chain(trouble.look_again).min();
    let report = report::report(&view, &next, &step, trouble.found.as_ref());
    Plan {
        record: next,
        report,
        effects: step.effects,
        wake: step.wake,
        awaits_word: step.awaits_word,
    }
}

/// The order of the chapters.
fn decide(view: &View<'_>, record: &mut Record) -> Step {
    if view.intent.paused {
        return Step::new(
            Work::Blocked,
            Reason::Paused,
            "spec.paused is true: nothing is changed until it is false again",
        );
    }
    if let Secrets::Missing(what) = &view.world.secrets {
        return Step::new(Work::Blocked, Reason::SecretMissing, what.clone()).wake(LATER);
    }
    if let Secrets::Taken(what) = &view.world.secrets {
        // A pod that is made now would mount it. Whoever looks at it tells when it is gone.
        return Step::new(Work::Blocked, Reason::NameTaken, what.clone());
    }
    if let Some(step) = hibernate::refuse(view) {
        return step.with(seal::seal(view));
    }
    if let Some(step) = hibernate::hibernate(view, record) {
        return step;
    }
    let mut effects = services::services(view);
    if let Secrets::Awaited { what, ask } = &view.world.secrets {
        effects.extend(ask.then_some(Effect::RequestCertificates));
        return Step::new(Work::Creating, Reason::WaitingForCertificates, what.clone())
            .with(effects)
            .wake(LATER);
    }
    effects.extend(secure::rotate(view));
    if let Secrets::Due { first } = view.world.secrets {
        effects.push(Effect::IssueCertificates { next: false });
        if first {
            return Step::new(
                Work::Creating,
                Reason::IssuingCertificates,
                "issuing the certificates of the cluster",
            )
            .with(effects);
        }
    }
    effects.extend(seal::seal(view));
    let mut step = restore::restore(view, record)
        .or_else(|| adopt::begin(view))
        .or_else(|| bootstrap::without_record(view, record))
        .or_else(|| restore::awaited(view))
        .or_else(|| bootstrap::bootstrap(view, record))
        .or_else(|| recover::recover(view, record))
        .or_else(|| restart::restart(view))
        .or_else(|| cleanup::clean_up(view))
        // Members come to be of one version, which can be compared, by a roll that goes on.
        .or_else(|| match corruption::needs_one_version(view) {
            true => rollout::rollout(view, record),
            false => None,
        })
        .or_else(|| corruption::corruption(view))
        .or_else(|| replace::replace(view, record))
        .or_else(|| maintenance::clear_space_alarms(view))
        .or_else(|| shrink::shrink_what_never_started(view))
        .or_else(|| grow::before_promotion(view))
        .or_else(|| join::join(view))
        .or_else(|| grow::grow(view))
        .or_else(|| shrink::shrink(view))
        .or_else(|| maintenance::wait_for_space(view))
        .or_else(|| adopt::release(view))
        .or_else(|| backups::before_upgrade(view))
        .or_else(|| secure::estranged(view))
        .or_else(|| rollout::rollout(view, record))
        .or_else(|| secure::wait(view))
        .or_else(|| maintenance::maintenance(view, record))
        .or_else(|| wait::wait(view))
        .or_else(|| backups::clash(view))
        .unwrap_or_default();
    effects.append(&mut step.effects);
    effects.extend(backups::keep(view));
    step.effects = effects;
    step
}

/// Without a proven list: a member that answers and that the others know is not forgotten. Before 3.4 a new voter counts
/// before a list with it could be proven, and the quorum may need it to come back.
fn remember_believed(intent: &Intent, record: &mut Record, world: &World) {
    if record.members.is_empty() {
        return;
    }
    let reply = |name: &MemberName| match world.probes.get(name) {
        Some(MemberProbe::Reply(reply)) => Some(reply),
        _ => None,
    };
    for listed in world.probes.keys().filter_map(reply).flat_map(|reply| &reply.list) {
        let Some(name) = members::owner(intent, listed) else {
            continue;
        };
        if reply(&name).is_some_and(|reply| reply.id == listed.id) {
            record.members.entry(name).or_insert_with(|| Remembered {
                id: Some(listed.id),
                voter: !listed.learner,
                peer_url: listed.peer_urls.first().cloned().unwrap_or_default(),
            });
        }
    }
}

/// Keeps what this round's observation proved.
fn remember(intent: &Intent, record: &mut Record, world: &World, now: Timestamp) {
    if let Some(cluster) = record.bootstrap.as_ref().and_then(|bootstrap| bootstrap.cluster) {
        record.has_been(cluster);
    }
    gone::remember(intent, record, world);
    old_claims::forget(intent, record, world, now);
    old_claims::remember_replaced(record, world);
    let Some(list) = &world.list else {
        if record.began() && !record.hibernating && record.quorum_lost.is_none() {
            record.quorum_lost = Some(now);
        }
        remember_believed(intent, record, world);
        return;
    };
    record.quorum_lost = None;
    record.asked = None;
    let others = list.voters().filter(|line| members::owner(intent, line).is_none());
    record.other_voters = Some(others.map(|line| members::display_name(line).0).collect());
    if let Some(bootstrap) = &mut record.bootstrap
        && bootstrap.cluster.is_none()
    {
        bootstrap.cluster = Some(list.cluster);
    }
    // What the slowest member runs is what the cluster runs, by the members' own words: a version that is taken back
    // before the last restart was seen must follow from there (etcd refuses to start below it).
    let versions: Option<Vec<&EtcdVersion>> = list
        .voters()
        .filter_map(|listed| members::owner(intent, listed))
        .map(|name| match world.probes.get(&name) {
            Some(MemberProbe::Reply(reply)) => Some(&reply.version),
            _ => None,
        })
        .collect();
    if let Some(oldest) = versions.and_then(|versions| versions.into_iter().min())
        && record
            .current
            .as_ref()
            .is_none_or(|current| current.minor() < oldest.minor())
    {
        record.current = Some(oldest.clone());
    }
    // Whatever a member of 3.4 or before is asked at `/health` is in everybody's log.
    let speaks_old = |probe: &MemberProbe| matches!(probe, MemberProbe::Reply(reply) if reply.version.minor() < 5);
    if world.probes.values().any(speaks_old) {
        record.old_log = Some(OldLog::Held);
    }
    record.members = list
        .members
        .iter()
        .filter_map(|listed| {
            let name = members::owner(intent, listed)?;
            Some((
                name,
                Remembered {
                    id: Some(listed.id),
                    voter: !listed.learner,
                    peer_url: listed.peer_urls.first().cloned().unwrap_or_default(),
                },
            ))
        })
        .collect();
}

#[cfg(test)]
mod tests {
    /// The chapters that `decide` asks.
    const CHAPTERS: &[(&str, &str)] = &[
        ("adopt", include_str!("adopt.rs")),
        ("backups", include_str!("backups.rs")),
        ("bootstrap", include_str!("bootstrap.rs")),
        ("maintenance", include_str!("maintenance.rs")),
        ("cleanup", include_str!("cleanup.rs")),
        ("corruption", include_str!("corruption.rs")),
        ("grow", include_str!("grow.rs")),
        ("hibernate", include_str!("hibernate.rs")),
        ("join", include_str!("join.rs")),
        ("recover", include_str!("recover.rs")),
        ("replace", include_str!("replace.rs")),
        ("restart", include_str!("restart.rs")),
        ("restore", include_str!("restore.rs")),
        ("rollout", include_str!("rollout.rs")),
        ("seal", include_str!("seal.rs")),
        ("secure", include_str!("secure.rs")),
        ("services", include_str!("services.rs")),
        ("shrink", include_str!("shrink.rs")),
        ("wait", include_str!("wait.rs")),
    ];

    #[test]
    fn decide_asks_every_chapter_and_no_chapter_calls_another() {
        let order = include_str!("mod.rs").split("\nfn decide(").nth(1).expect("decide");
        let order = order.split("\n}").next().expect("its end");
        for (name, text) in CHAPTERS {
            assert!(order.contains(&format!("{name}::")), "decide does not ask {name}");
            let code = text.split("#[cfg(test)]").next().expect("code");
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            for path in lines.flat_map(|line| line.split(|c| !is_path(c))) {
                let mut modules = path.rsplit("::").skip(1);
                let is_other = |module: &&str| CHAPTERS.iter().any(|(other, _)| other == module && other != name);
                assert_eq!(modules.find(is_other), None, "{name} calls another chapter: {path}");
            }
        }
    }
}
