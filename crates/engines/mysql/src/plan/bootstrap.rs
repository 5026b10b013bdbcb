//! The cluster is created once. The decision is recorded before the first pod, and the first transactions before the first clone:
//! with them no empty server becomes a first primary any more.

use super::round::{Flow, LATER, Round, View, Work};
use crate::action::{Action, ClaimEnd};
use crate::api::WhenNoAcker;
use crate::memory::Bootstrap;
use crate::names::ANNOTATION_IGNORE_OLD_CLAIMS;
use crate::reason::Reason;
use crate::world::Ordinal;

/// The member whose empty server becomes the first primary.
const SEED: Ordinal = Ordinal(0);

/// Decides to create the cluster.
pub(super) fn decide(view: &View<'_>, round: &mut Round) -> Flow {
    if round.memory.bootstrap.is_some() {
        return Flow::On;
    }
    if let Some(adopt) = &view.intent.requests.adopt {
        let message = format!(
            "adopting the StatefulSet {adopt} is not possible yet: remove the annotation to create a new cluster"
        );
        round.say(Work::Blocked, Reason::AdoptionRefused, message);
        return Flow::Stop;
    }
    let pods = view.world.members.values().any(|member| member.pod.is_some());
    if view.world.set.is_some() || pods {
        let message = "the status does not tell how this cluster was created, but its StatefulSet or pods exist. Nothing is changed: \
                       restore the status, or delete the MySQLCluster and restore a backup";
        round.say(Work::Blocked, Reason::RecordMissing, message);
        return Flow::Stop;
    }
    let claims: Vec<(Ordinal, _)> = view
        .world
        .members
        .iter()
        .filter_map(|(member, observed)| Some((*member, observed.claim.as_ref()?)))
        .collect();
    if !claims.is_empty() {
        let names: Vec<String> = claims
            .iter()
            .map(|(member, _)| crate::names::claim(&view.intent.name, *member))
            .collect();
        let ignored = view.intent.requests.ignore_old_claims;
        let message = if ignored {
            format!("deleting the claims of an earlier cluster: {}", names.join(", "))
        } else {
            format!(
                "claims of an earlier cluster of this name exist: {}. Delete them to create an empty cluster, or let Stateward delete \
                 them: annotate the MySQLCluster with {ANNOTATION_IGNORE_OLD_CLAIMS}=true",
                names.join(", ")
            )
        };
        round.say(Work::Blocked, Reason::OldClaimsPresent, message);
        for (member, claim) in claims.iter().filter(|(_, claim)| ignored && !claim.terminating) {
            round.act(Action::DeleteClaim {
                member: *member,
                uid: claim.uid.clone(),
                why: ClaimEnd::Old,
            });
        }
        if ignored {
            round.wake(LATER);
        }
        return Flow::Stop;
    }
    let memory = &mut round.memory;
    memory.bootstrap = Some(Bootstrap {
        seed: SEED,
        ..Bootstrap::default()
    });
    memory.target = Some(view.intent.version);
    memory.passwords.rotation.clone_from(&view.intent.requests.rotate);
    Flow::On
}

/// Writes the first transactions, and records them.
pub(super) fn found(view: &View<'_>, round: &mut Round) -> Flow {
    let Some(seed) = round.memory.bootstrap.as_ref().map(|bootstrap| bootstrap.seed) else {
        return Flow::Stop;
    };
    if round.memory.founded() {
        return Flow::On;
    }
    let name = view.name(seed);
    let message = format!("waiting until {name} replies, to write the first transactions");
    let Some(reply) = view.reply(seed) else {
        round.say(
            Work::Creating,
            Reason::CreatingMembers,
            view.why_silent(seed).unwrap_or(message),
        );
        round.wake(LATER);
        return Flow::Stop;
    };
    let claim = view.member(seed).and_then(|member| member.claim.as_ref());
    let ours = reply.cluster.as_ref() == Some(&view.intent.uid);
    if ours && !reply.is_blank() && reply.read_only {
        let memory = &mut round.memory;
        if let Some(bootstrap) = &mut memory.bootstrap {
            bootstrap.first = reply.executed.clone();
        }
        memory.primary = Some(seed);
        memory.epoch = 1;
        // Nothing was acknowledged yet: nobody needs to hold anything.
        memory.acks = 0;
        memory.required = match view.intent.when_no_acker {
            WhenNoAcker::Block => view.intent.acks,
            WhenNoAcker::Degrade => 0,
        };
        memory.claims.extend(claim.map(|claim| (seed, claim.uid.clone())));
        round.wake(super::round::SOON);
        return Flow::On;
    }
    let own = reply.executed.uuids().all(|uuid| uuid == reply.process.uuid);
    if (reply.cluster.is_some() && !ours) || !own {
        let message =
            format!("the data of {name} is of another cluster. Delete its claim and its pod to create this one");
        round.say(Work::Blocked, Reason::ServerOfAnotherCluster, message);
        round.wake(LATER);
        return Flow::Stop;
    }
    round.say(
        Work::Creating,
        Reason::Bootstrapping,
        format!("writing the first transactions on {name}"),
    );
    round.act(Action::Found {
        member: seed,
        process: reply.process.clone(),
    });
    Flow::Stop
}
