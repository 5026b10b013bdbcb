//! The rules that no plan may break (docs/rules.md), checked for every plan and every effect against the real state. There
//! is one file per subject. This one has the names of the rules and the comparison with the desired state.

mod history;
mod members;
mod plans;

use stateward_etcd::cluster::{Intent, Listed, MemberName, MemberProbe, Record, Uid, World, members::owner};

macro_rules! names {
    ($(pub(crate) const $rule:ident: &str = $text:literal;)*) => {
        $(pub(crate) const $rule: &str = $text;)*
        /// All of them.
        pub(crate) const ALL: &[&str] = &[$($rule),*];
    };
}
pub(crate) use names;

/// The names of the rules in tests and logs.
pub(crate) mod name {
    super::names! {
    pub(crate) const QUORUM: &str = "rule 1: never fewer voters than a quorum while something safer exists";
    pub(crate) const ONE_CHANGE: &str = "rule 2: one membership change at a time";
    pub(crate) const ONE_BOOTSTRAP: &str = "rule 3: a cluster is bootstrapped once";
    pub(crate) const DATA: &str = "rule 4: data is deleted only when its member is out of the list";
    pub(crate) const EVIDENCE: &str = "rule 5: destruction rests on evidence";
    pub(crate) const NO_RESTART: &str = "rule 6: members are not restarted without a reason";
    pub(crate) const MESSAGES: &str = "rule 7: every wait has a reason";
    pub(crate) const PAUSED: &str = "a paused cluster is not touched";
    pub(crate) const LEADER: &str = "the leader is not removed or restarted while another choice exists";
    pub(crate) const FOREIGN_MEMBERS: &str = "members that are not ours are never removed";
    pub(crate) const FOREIGN: &str = "objects of others are never changed or deleted";
    pub(crate) const REMEMBERED: &str = "the status holds all that must be remembered";
    pub(crate) const MEMORY: &str = "a member never comes back without its memory";
    pub(crate) const WRITES: &str = "no acknowledged write is lost while a majority of volumes survives";
    pub(crate) const RESTORE_ONCE: &str = "an EtcdRestore is followed once";
    pub(crate) const RESTORE_ASKED: &str = "an EtcdRestore that was deleted before it began is not followed";
    pub(crate) const RESTORE_AWAITED: &str = "a cluster with a waiting EtcdRestore never begins empty";
    pub(crate) const RESTORE_PROVEN: &str = "without a proven backup nothing is changed";
    pub(crate) const RESTORE_FENCED: &str = "old members never take part beside or in the new cluster";
    pub(crate) const RESTORE_WHOLE: &str = "a restored cluster has every write of its backup";
    pub(crate) const RESTORE_RETAINS: &str = "claims that a restore replaced stay where the user keeps claims";
    pub(crate) const RESTORE_READABLE: &str = "no member is started from a backup of a newer etcd";
    pub(crate) const REJECTED_POD: &str = "no healthy member is stopped for a pod that the API server rejects";
    pub(crate) const ONE_CLUSTER: &str = "two clusters never serve at once: a quorum is given up only when all other members have ended";
    pub(crate) const DELAY: &str = "a quorum is given up only after delaySeconds";
    pub(crate) const SURVIVOR: &str = "the survivor that knows most to be committed becomes the cluster";
    pub(crate) const OLD_CLAIMS: &str = "old claims are kept after a recovery";
    pub(crate) const OWN_BACKUP: &str = "a recovery uses no other cluster's backup without consent";
    pub(crate) const CRASHES: &str = "a member that crashes like its predecessor is not replaced again soon";
    pub(crate) const VERSIONS: &str = "no member runs more than one minor version ahead of the cluster's version";
    pub(crate) const TRUST: &str = "no running member meets a peer that it cannot verify";
    pub(crate) const ALARMED: &str = "a cluster that rejects writes is reported as that, and not as healthy or lost";
    pub(crate) const AGREEMENT: &str = "CORRUPT is disarmed only when all voters have the same data";
    pub(crate) const SOURCE: &str = "while CORRUPT is raised no member is copied from outside the majority";
    pub(crate) const REPORTED: &str = "what keeps a pod from running for ten seconds is reported";
    pub(crate) const CONVERGES: &str = "once faults stop the cluster comes to match the spec and stays so";
    }
}

/// Whether a member serves as the member in the list, by its reply in this reconcile.
fn healthy(world: &World, member: &MemberName, listed: &Listed) -> bool {
    matches!(world.probes.get(member), Some(MemberProbe::Reply(reply)) if reply.leader.is_some() && reply.id == listed.id)
}

/// A claim of a member that a restore replaced, where the user keeps such claims.
pub(crate) fn is_retained(intent: &Intent, record: &Record, claim: &Uid) -> bool {
    let old = record.restore.iter().flat_map(|restore| &restore.old_claims);
    let mut old = old.chain(&record.replaced_claims);
    intent.retain_claims && old.any(|(_, uid)| uid == claim)
}

/// The first difference between the desired and the observed state, if there is one.
pub(crate) fn not_as_expected(intent: &Intent, record: &Record, world: &World) -> Option<String> {
    let Some(list) = &world.list else {
        return (!intent.hibernate || !world.pods.is_empty()).then(|| "no member list is proven".into());
    };
    let voters = list
        .members
        .iter()
        .filter(|line| !line.learner && owner(intent, line).is_some())
        .count();
    if voters != intent.size {
        return Some(format!(
            "{voters} members vote, and the desired number is {}",
            intent.size
        ));
    }
    for line in &list.members {
        let Some(owner) = owner(intent, line) else {
            continue;
        };
        if line.learner {
            return Some(format!("{owner} is a learner"));
        }
        if !healthy(world, &owner, line) {
            return Some(format!("{owner} does not reply"));
        }
        match world.pods.get(&owner) {
            None => return Some(format!("{owner} has no pod")),
            Some(pod) if pod.terminating => return Some(format!("{owner} is stopping")),
            Some(pod) if pod.template != intent.template => return Some(format!("{owner} has old settings")),
            Some(pod) if pod.metadata != intent.metadata => return Some(format!("{owner} has old labels")),
            Some(pod) if pod.launch != stateward_etcd::cluster::LaunchKind::Sealed => {
                return Some(format!("{owner} is not sealed"));
            }
            Some(_) => {}
        }
    }
    if let Some((id, alarm)) = world.alarms.first() {
        return Some(format!("{alarm} is raised for {id}"));
    }
    if let Some(trust) = &world.trust {
        let trusted = |pod: &stateward_etcd::cluster::Pod| pod.trusts.as_ref() == Some(&trust.wanted);
        if trust.renew
            || trust.issued != trust.wanted
            || trust.bundle != trust.wanted
            || !world.pods.values().all(trusted)
        {
            return Some("the rotation of the CA is not done".into());
        }
    }
    let is_ours = |name: &&MemberName| {
        list.members
            .iter()
            .any(|line| owner(intent, line).as_ref() == Some(*name))
    };
    let kept = record.old_claims.iter().flat_map(|old| &old.claims);
    let kept: Vec<&MemberName> = kept.map(|(name, _)| name).collect();
    let claims = world
        .claims
        .iter()
        .filter(|(name, claim)| !kept.contains(name) && !is_retained(intent, record, &claim.uid));
    let claims = claims.map(|(name, _)| name);
    if let Some(extra) = world.pods.keys().chain(claims).find(|name| !is_ours(name)) {
        return Some(format!("{extra} is no member and still has a pod or a claim"));
    }
    None
}
