//! The memory and the report as the status of the MySQLCluster, and the memory back from it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::Uid;
use stateward_core::conditions::{self, Condition, ConditionStatus, types};

use crate::api::{
    AppliedConfig, BootstrapRecord, Expelled, FailoverRecord, MemberStatus, MySQLClusterStatus, PasswordRecord,
    PendingRecord, Phase, QuarantineRecord, SwitchoverRecord, TlsRecord,
};
use crate::gtid::{GtidSet, parse_uuid, uuid_text};
use crate::intent::Intent;
use crate::memory::{Applied, Bootstrap, Failover, Memory, Passwords, Pending, Quarantine, Switchover};
use crate::names;
use crate::plan::report::{MemberLine, Report, Statement};
use crate::reason::Reason;
use crate::world::{Ordinal, World};

/// Where a member's own transactions are saved while there is no backup store.
const SAVED: &str = "its volume";

/// What the status remembers.
pub fn memory(status: &MySQLClusterStatus) -> Memory {
    let members = || {
        let lines = status.members.iter();
        lines.filter_map(|line| Some((ordinal(&line.name)?, line)))
    };
    Memory {
        bootstrap: status.bootstrap.as_ref().and_then(|record| {
            Some(Bootstrap {
                seed: ordinal(&record.seed)?,
                first: gtids(&record.first_gtids),
            })
        }),
        primary: ordinal(&status.primary),
        epoch: u64::try_from(status.epoch).unwrap_or(0),
        opened: status.opened,
        acks: number(status.acks),
        required: number(status.required_acks),
        ackers: ordinals(&status.ackers),
        pending: status.pending_ackers.as_ref().map(|record| Pending {
            ackers: ordinals(&record.ackers),
            acks: number(record.acks),
            must_hold: gtids(&record.must_hold),
        }),
        failover: status.failover.as_ref().and_then(|record| {
            Some(Failover {
                from: ordinal(&record.from)?,
                reason: record.reason.clone(),
                since: time(&record.since)?,
            })
        }),
        switchover: status.switchover.as_ref().and_then(|record| {
            Some(Switchover {
                from: ordinal(&record.from)?,
                to: ordinal(&record.to)?,
                since: time(&record.since)?,
            })
        }),
        switchover_failed: time(&status.switchover_failed_at),
        quarantine: status
            .quarantine
            .iter()
            .filter_map(|record| {
                let quarantine = Quarantine {
                    uuid: parse_uuid(&record.server_uuid).unwrap_or(0),
                    gtids: gtids(&record.gtids),
                    automatic: record.automatic,
                    saved: !record.saved.is_empty(),
                };
                Some((ordinal(&record.member)?, quarantine))
            })
            .collect(),
        received_at_promotion: gtids(&status.received_at_promotion),
        former_primary: ordinal(&status.former_primary),
        expelled: members()
            .filter(|(_, line)| line.expelled.is_some())
            .map(|(member, _)| member)
            .collect(),
        claims: members()
            .filter(|(_, line)| !line.claim_uid.is_empty())
            .map(|(member, line)| (member, Uid(line.claim_uid.clone())))
            .collect(),
        applied: members()
            .filter_map(|(member, line)| {
                let config = line.config.as_ref()?;
                let applied = Applied {
                    boot: config.boot.clone(),
                    hash: config.hash.clone(),
                    keys: config.keys.iter().cloned().collect(),
                };
                Some((member, applied))
            })
            .collect(),
        current: status.current_version.parse().ok(),
        target: status.target_version.parse().ok(),
        upgrade_backup: some(&status.upgrade_backup),
        hibernating: status.hibernating,
        passwords: status
            .passwords
            .as_ref()
            .map_or_else(Passwords::default, |record| Passwords {
                rotation: record.rotation.clone(),
                old_until: time(&record.old_until),
            }),
        switched_to: some(&status.switched_to),
    }
}

/// The status to write. It equals the old one when nothing changed, so that steady state writes nothing.
pub fn status(
    old: &MySQLClusterStatus,
    intent: &Intent,
    world: &World,
    memory: &Memory,
    report: &Report,
    now: Timestamp,
) -> MySQLClusterStatus {
    let now = Time(now);
    let pod = |member: Ordinal| names::pod(&intent.name, member);
    let pods = |members: &BTreeSet<Ordinal>| members.iter().map(|member| pod(*member)).collect();
    MySQLClusterStatus {
        phase: report.phase,
        conditions: conditions(old, report, &now),
        observed_generation: Some(report.generation),
        size: signed(report.size),
        ready_members: signed(report.ready),
        selector: selector(&intent.name),
        primary: memory.primary.map(pod).unwrap_or_default(),
        epoch: i64::try_from(memory.epoch).unwrap_or(i64::MAX),
        acks: signed(memory.acks),
        ackers: pods(&memory.ackers),
        required_acks: signed(memory.required),
        pending_ackers: memory.pending.as_ref().map(|pending| PendingRecord {
            ackers: pods(&pending.ackers),
            acks: signed(pending.acks),
            must_hold: pending.must_hold.to_string(),
        }),
        members: members(old, intent, memory, report, &now),
        current_version: text(memory.current),
        target_version: text(memory.target.filter(|target| Some(*target) != memory.current)),
        waiting: report.waiting.clone(),
        bootstrap: memory.bootstrap.as_ref().map(|bootstrap| BootstrapRecord {
            seed: pod(bootstrap.seed),
            first_gtids: bootstrap.first.to_string(),
        }),
        failover: memory.failover.as_ref().map(|failover| FailoverRecord {
            from: pod(failover.from),
            reason: failover.reason.clone(),
            since: Some(Time(failover.since)),
        }),
        switchover: memory.switchover.as_ref().map(|switchover| SwitchoverRecord {
            from: pod(switchover.from),
            to: pod(switchover.to),
            since: Some(Time(switchover.since)),
        }),
        switchover_failed_at: memory.switchover_failed.map(Time),
        switched_to: memory.switched_to.clone().unwrap_or_default(),
        upgrade_backup: memory.upgrade_backup.clone().unwrap_or_default(),
        opened: memory.opened,
        quarantine: memory
            .quarantine
            .iter()
            .map(|(member, quarantine)| QuarantineRecord {
                member: pod(*member),
                server_uuid: uuid_text(quarantine.uuid),
                gtids: quarantine.gtids.to_string(),
                automatic: quarantine.automatic,
                saved: if quarantine.saved { SAVED.into() } else { String::new() },
            })
            .collect(),
        received_at_promotion: memory.received_at_promotion.to_string(),
        former_primary: memory.former_primary.map(pod).unwrap_or_default(),
        hibernating: memory.hibernating,
        passwords: (memory.passwords != Passwords::default()).then(|| PasswordRecord {
            rotation: memory.passwords.rotation.clone(),
            old_until: memory.passwords.old_until.map(Time),
        }),
        tls: world.tls.not_after.map(|end| TlsRecord {
            not_after: Some(Time(end)),
        }),
    }
}

/// The status of a cluster whose spec cannot be followed: only the words change.
pub fn refused(old: &MySQLClusterStatus, generation: i64, why: &str, now: Timestamp) -> MySQLClusterStatus {
    let mut new = old.clone();
    let now = Time(now);
    for (type_, status) in [
        (types::PROGRESSING, ConditionStatus::False),
        (types::DEGRADED, ConditionStatus::True),
    ] {
        let condition = Condition::new(type_, status, Reason::InvalidSpec.as_str(), why);
        conditions::set(&mut new.conditions, condition.observed(Some(generation)), &now);
    }
    if new.bootstrap.is_none() {
        new.phase = Phase::Failed;
    }
    new.waiting = why.to_owned();
    new.observed_generation = Some(generation);
    new
}

fn conditions(old: &MySQLClusterStatus, report: &Report, now: &Time) -> Vec<Condition> {
    let mut conditions = old.conditions.clone();
    let said = |type_: &str, statement: &Statement| {
        let holds = if statement.holds {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        let condition = Condition::new(type_, holds, statement.reason.as_str(), statement.message.clone());
        condition.observed(Some(report.generation))
    };
    for (type_, statement) in [
        (types::AVAILABLE, &report.available),
        (types::PROGRESSING, &report.progressing),
        (types::DEGRADED, &report.degraded),
    ] {
        conditions::set(&mut conditions, said(type_, statement), now);
    }
    for (type_, statement) in [
        (types::SCALING, &report.scaling),
        (types::UPGRADING, &report.upgrading),
        (types::RECOVERING, &report.recovering),
    ] {
        match statement {
            Some(statement) => conditions::set(&mut conditions, said(type_, statement), now),
            None => conditions::remove(&mut conditions, type_),
        };
    }
    conditions
}

/// One line for each member that is reported, and for each that something is remembered of.
fn members(
    old: &MySQLClusterStatus,
    intent: &Intent,
    memory: &Memory,
    report: &Report,
    now: &Time,
) -> Vec<MemberStatus> {
    let reported: BTreeMap<Ordinal, &MemberLine> = report.members.iter().map(|line| (line.member, line)).collect();
    let remembered = memory
        .claims
        .keys()
        .chain(memory.applied.keys())
        .chain(&memory.expelled);
    let all: BTreeSet<Ordinal> = reported.keys().chain(remembered).copied().collect();
    let line = |member: Ordinal| {
        let name = names::pod(&intent.name, member);
        let before = old.members.iter().find(|line| line.name == name);
        let mut status = reported
            .get(&member)
            .map_or_else(MemberStatus::default, |line| seen(line));
        status.config = memory.applied.get(&member).map(|applied| AppliedConfig {
            boot: applied.boot.clone(),
            hash: applied.hash.clone(),
            keys: applied.keys.iter().cloned().collect(),
        });
        status.expelled = memory.expelled.contains(&member).then(|| Expelled {
            since: before
                .and_then(|line| line.expelled.as_ref()?.since.clone())
                .or_else(|| Some(now.clone())),
        });
        status.claim_uid = memory.claims.get(&member).map(|uid| uid.0.clone()).unwrap_or_default();
        status.acknowledges = memory.ackers.contains(&member);
        status.name = name;
        status
    };
    all.into_iter().map(line).collect()
}

fn seen(line: &MemberLine) -> MemberStatus {
    MemberStatus {
        role: line.role,
        health: line.health,
        version: text(line.version),
        server_uuid: line.uuid.map(uuid_text).unwrap_or_default(),
        lag_seconds: line.lag.map(|lag| i64::try_from(lag).unwrap_or(i64::MAX)),
        clone_percent: line.clone_percent.map(signed),
        message: line.message.clone(),
        ..MemberStatus::default()
    }
}

fn selector(cluster: &str) -> String {
    let labels = names::selector(cluster);
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

/// The member that a pod is of. A StatefulSet's pods end in their ordinal.
fn ordinal(pod: &str) -> Option<Ordinal> {
    pod.rsplit_once('-')?.1.parse().ok().map(Ordinal)
}

fn ordinals(pods: &[String]) -> BTreeSet<Ordinal> {
    pods.iter().filter_map(|pod| ordinal(pod)).collect()
}

fn gtids(text: &str) -> GtidSet {
    text.parse().unwrap_or_default()
}

fn time(time: &Option<Time>) -> Option<Timestamp> {
    time.as_ref().map(|time| time.0)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn number(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
