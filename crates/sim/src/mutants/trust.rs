//! Planners with mistakes about CAs.

use std::time::Duration;

use jiff::Timestamp;
use stateward_etcd::cluster::guard::Kind;
use stateward_etcd::cluster::{Effect, Intent, Plan, Record, Trust, World, plan};

use super::{Mutant, caught};
use crate::rules::name;

/// Each mutant with the rules that may catch it first.
pub(super) fn all() -> Vec<Mutant> {
    vec![
        caught(
            "issues early",
            certificates_are_issued_before_all_trust_them,
            &[name::TRUST],
        )
        .without(Kind::AllTrust),
        caught(
            "no overlap",
            a_new_ca_replaces_the_old_one_immediately,
            &[name::TRUST, name::CONVERGES, name::MESSAGES],
        ),
        caught(
            "drops early",
            the_old_ca_is_dropped_before_the_new_certificates_are_seen,
            &[name::TRUST],
        ),
    ]
}

/// A planner whose input has other CAs than the real state.
pub(super) fn deceived(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
    how: impl Fn(&mut Trust),
) -> Plan {
    let mut world = world.clone();
    if let Some(trust) = &mut world.trust {
        how(trust);
    }
    plan(intent, record, &world, now)
}

pub(super) fn certificates_are_issued_before_all_trust_them(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    let mut plan = plan(intent, record, world, now);
    let trust = world.trust.as_ref();
    if !intent.paused
        && trust.is_some_and(|trust| trust.issued != trust.wanted && trust.wanted.is_subset(&trust.bundle))
    {
        plan.effects.push(Effect::IssueCertificates { next: true });
    }
    plan
}

pub(super) fn a_new_ca_replaces_the_old_one_immediately(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    deceived(intent, record, world, now, |trust| {
        if trust.issued != trust.wanted {
            trust.issued.clone_from(&trust.wanted);
            trust.seen = true;
        }
    })
}

pub(super) fn the_old_ca_is_dropped_before_the_new_certificates_are_seen(
    intent: &Intent,
    record: &Record,
    world: &World,
    now: Timestamp,
) -> Plan {
    deceived(intent, record, world, now, |trust| {
        trust.seen = true;
        trust.overlap_left = Duration::ZERO;
    })
}
