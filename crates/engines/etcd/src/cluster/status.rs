//! The record and the report as the status of the EtcdCluster, and the record back from it.

use std::collections::BTreeMap;

use crate::api::etcd_cluster::{
    self as api, BootstrapPhase, BootstrapRecord, CrashReplacement, DefragmentationRecord, EtcdClusterStatus,
    MemberRole, MemberSeen, MemberStatus, MembersStatus, OnQuorumLoss, Phase, RecoveryPhase, RecoveryRecord,
    RestoreRecord, TlsStatus, UpgradeRecord,
};
use crate::api::etcd_restore::{ClaimRecord, RestorePhase};
use crate::api::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_core::conditions::{self, Condition, ConditionStatus, types};

use super::Reason;
use super::intent::Intent;
use super::record::{
    Bootstrapped, CrashReplaced, Defragmented, LastSeen, OldClaims, Record, Recovering, Remembered, RestoreStep,
    Restoring,
};
use super::report::{MemberLine, Report, Statement};
use super::world::{ClusterId, MemberId, MemberName, Uid};

/// What the status remembers.
pub fn record(status: &EtcdClusterStatus) -> Record {
    let version = |text: &str| text.parse().ok();
    let bootstrap = status.bootstrap.as_ref().map(|record| Bootstrapped {
        token: record.token.clone(),
        first: if record.members.is_empty() {
            vec![record.seed.clone()]
        } else {
            record.members.clone()
        }
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(MemberName)
        .collect(),
        cluster: ClusterId::from_hex(&status.cluster_id),
    });
    let members = status.member_statuses.iter().filter_map(|member| {
        let (id, role) = (MemberId::from_hex(&member.id)?, member.role?);
        Some((
            MemberName(member.name.clone()),
            Remembered {
                id: Some(id),
                voter: role != MemberRole::Learner,
                peer_url: member.peer_url.clone(),
            },
        ))
    });
    let recovery = status.recovery.as_ref();
    let current = version(&status.current_version);
    let restore = status.restore.as_ref().map(|record| Restoring {
        uid: Uid(record.restore_uid.clone()),
        name: record.name.clone(),
        recovery: record.recovery,
        source: Box::new(record.source.clone()),
        token: record.token.clone(),
        seed: MemberName(record.seed.clone()),
        old_claims: claims(&record.old_claims),
        step: match record.phase {
            RestorePhase::Complete => RestoreStep::Done,
            RestorePhase::Seeding => RestoreStep::Seeding,
            _ => RestoreStep::Stopping,
        },
    });
    Record {
        restore,
        asked: recovery
            .map(|record| record.restore.clone())
            .filter(|name| !name.is_empty()),
        bootstrap,
        members: members.collect(),
        target: version(&status.target_version).or_else(|| current.clone()),
        current,
        quorum_lost: recovery.and_then(|record| record.lost_at.as_ref()).map(|time| time.0),
        recovery: recovery
            .filter(|record| !record.seed.is_empty())
            .map(|record| Recovering {
                survivor: MemberName(record.seed.clone()),
                started: record.phase == RecoveryPhase::Seeding,
                served: record.served,
            }),
        ready_for: status
            .upgrade
            .as_ref()
            .filter(|upgrade| upgrade.ready)
            .and_then(|upgrade| version(&upgrade.to)),
        upgrade_backup: status
            .upgrade
            .as_ref()
            .map(|upgrade| upgrade.backup.clone())
            .filter(|name| !name.is_empty()),
        crash_replaced: status.crash_replacement.as_ref().and_then(|record| {
            Some(CrashReplaced {
                at: record.at.as_ref()?.0,
                times: u32::try_from(record.times).unwrap_or(1),
            })
        }),
        defragmented: status.defragmentation.as_ref().and_then(|record| {
            Some(Defragmented {
                scheduled: record.scheduled_at.as_ref()?.0,
                members: record.members.iter().cloned().map(MemberName).collect(),
            })
        }),
        old_log: status.old_log,
        cluster_ids: if status.cluster_ids.is_empty() {
            ClusterId::from_hex(&status.cluster_id).into_iter().collect()
        } else {
            let ids = status.cluster_ids.iter();
            ids.filter_map(|id| ClusterId::from_hex(id)).collect()
        },
        last_seen: last_seen(status),
        other_voters: status.other_voters.clone(),
        replaced_claims: claims(&status.replaced_claims),
        old_claims: status.old_claims.as_ref().and_then(|old| {
            Some(OldClaims {
                claims: claims(&old.claims),
                served: old.served_at.as_ref()?.0,
            })
        }),
        // Versions before 0.2 wrote no field for it; their condition says it.
        hibernating: status.hibernating.unwrap_or_else(|| {
            conditions::get(&status.conditions, types::AVAILABLE)
                .is_some_and(|condition| condition.reason == Reason::Hibernating.as_str())
        }),
    }
}

fn claims(records: &[ClaimRecord]) -> Vec<(MemberName, Uid)> {
    let pairs = records.iter();
    pairs
        .map(|claim| (MemberName(claim.name.clone()), Uid(claim.uid.clone())))
        .collect()
}

fn claim_records(claims: &[(MemberName, Uid)]) -> Vec<ClaimRecord> {
    let records = claims.iter().map(|(name, uid)| ClaimRecord {
        name: name.0.clone(),
        uid: uid.0.clone(),
    });
    records.collect()
}

/// Where members last ran. A status of an earlier version tells only of the pods that were there when it was written; of a
/// member without one nothing is known, and that is not the same as one that never ran.
fn last_seen(status: &EtcdClusterStatus) -> BTreeMap<MemberName, LastSeen> {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    // Earlier versions wrote neither of the two fields; what they knew of a member's place is in its line.
    let is_of_earlier = status.last_seen.is_empty() && status.other_voters.is_none();
    let of_earlier = status
        .member_statuses
        .iter()
        .filter(|member| is_of_earlier && !member.id.is_empty());
    let mut all: BTreeMap<MemberName, LastSeen> = of_earlier
        .map(|member| {
            let seen = LastSeen {
                pod: Uid(if member.node.is_empty() {
                    String::new()
                } else {
                    member.pod_uid.clone()
                }),
                node: some(&member.node),
                ..LastSeen::default()
            };
            (MemberName(member.name.clone()), seen)
        })
        .collect();
    all.extend(status.last_seen.iter().map(|seen| {
        let known = LastSeen {
            pod: Uid(seen.pod_uid.clone()),
            node: some(&seen.node),
            attached: some(&seen.attached),
            ended: seen.ended,
        };
        (MemberName(seen.member.clone()), known)
    }));
    all
}

/// The status to write. Equal to the old one when nothing changed, so that steady state writes nothing.
pub fn status(
    old: &EtcdClusterStatus,
    intent: &Intent,
    record: &Record,
    report: &Report,
    now: Timestamp,
) -> EtcdClusterStatus {
    let now = Time(now);
    let mut new = old.clone();
    let generation = Some(report.generation);
    let said = |type_: &str, statement: &Statement| {
        let holds = if statement.holds {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        Condition::new(type_, holds, statement.reason.as_str(), statement.message.clone()).observed(generation)
    };
    for (type_, statement) in [
        (types::AVAILABLE, &report.available),
        (types::PROGRESSING, &report.progressing),
        (types::DEGRADED, &report.degraded),
    ] {
        conditions::set(&mut new.conditions, said(type_, statement), &now);
    }
    for (type_, statement) in [
        (types::SCALING, &report.scaling),
        (types::UPGRADING, &report.upgrading),
        (types::RECOVERING, &report.recovering),
    ] {
        match statement {
            Some(statement) => conditions::set(&mut new.conditions, said(type_, statement), &now),
            None => conditions::remove(&mut new.conditions, type_),
        };
    }
    new.phase = report.phase;
    let names_of = |ready: bool| {
        report
            .members
            .iter()
            .filter(|member| member.ready == ready)
            .map(|member| member.name.0.clone())
            .collect::<Vec<_>>()
    };
    new.members = MembersStatus {
        ready: names_of(true),
        unready: names_of(false),
    };
    new.ready_members = i32::try_from(new.members.ready.len()).unwrap_or(i32::MAX);
    new.reason = report.reason.clone();
    new.control_paused = report.paused;
    new.size = i32::try_from(report.size).unwrap_or(i32::MAX);
    new.selector = names::selector_text(&intent.name);
    new.service_name = names::client_service(&intent.name);
    new.client_port = names::CLIENT_PORT;
    new.current_version = report.current.as_ref().map(ToString::to_string).unwrap_or_default();
    new.target_version = report.target.as_ref().map(ToString::to_string).unwrap_or_default();
    new.observed_generation = generation;
    new.waiting = report.waiting.clone();
    new.cluster_id = record
        .bootstrap
        .as_ref()
        .and_then(|bootstrap| bootstrap.cluster)
        .map(|id| id.to_string())
        .unwrap_or_default();
    new.member_statuses = report.members.iter().map(member).collect();
    new.bootstrap = record
        .bootstrap
        .as_ref()
        .map(|bootstrap| bootstrap_record(old, intent, bootstrap, &now));
    new.recovery = recovery_record(old, record, &now);
    new.cluster_ids = record.cluster_ids.iter().map(ToString::to_string).collect();
    new.last_seen = record.last_seen.iter().map(member_seen).collect();
    new.other_voters = record.other_voters.clone();
    new.replaced_claims = claim_records(&record.replaced_claims);
    new.old_claims = record.old_claims.as_ref().map(|old| api::OldClaims {
        claims: claim_records(&old.claims),
        served_at: Some(Time(old.served)),
    });
    new.restore = record
        .restore
        .as_ref()
        .map(|restore| restore_record(old, restore, &now));
    new.tls = intent.peer_secret.as_ref().map(|secret| TlsStatus {
        peers: intent.tls,
        clients: intent.client_tls,
        peer_secret: secret.clone(),
        stage: report.rotation.clone(),
        ..TlsStatus::default()
    });
    new.crash_replacement = record.crash_replaced.as_ref().map(|replaced| CrashReplacement {
        at: Some(Time(replaced.at)),
        times: i64::from(replaced.times),
    });
    new.defragmentation = record.defragmented.as_ref().map(|done| DefragmentationRecord {
        scheduled_at: Some(Time(done.scheduled)),
        members: done.members.iter().map(|name| name.0.clone()).collect(),
    });
    // Written only where it was true once: it says nothing new about other clusters.
    new.hibernating = (record.hibernating || old.hibernating.is_some()).then_some(record.hibernating);
    new.old_log = record.old_log;
    let goes_to = record
        .ready_for
        .as_ref()
        .or(record.upgrade_backup.as_ref().map(|_| &intent.version));
    new.upgrade = goes_to.map(|to| {
        let (to, ready) = (to.to_string(), record.ready_for.is_some());
        let begun = old.upgrade.as_ref().filter(|upgrade| upgrade.to == to);
        UpgradeRecord {
            from: new.current_version.clone(),
            started_at: begun
                .and_then(|upgrade| upgrade.started_at.clone())
                .or_else(|| Some(now.clone())),
            backup: record.upgrade_backup.clone().unwrap_or_default(),
            halted: if ready { String::new() } else { new.waiting.clone() },
            ready,
            to,
        }
    });
    new
}

/// The status of a cluster whose spec cannot be followed: nothing but the words changes.
pub fn refused(old: &EtcdClusterStatus, generation: i64, words: &str, now: Timestamp) -> EtcdClusterStatus {
    let mut new = old.clone();
    let now = Time(now);
    for (type_, status) in [
        (types::PROGRESSING, ConditionStatus::False),
        (types::DEGRADED, ConditionStatus::True),
    ] {
        conditions::set(
            &mut new.conditions,
            Condition::new(type_, status, Reason::InvalidSpec.as_str(), words).observed(Some(generation)),
            &now,
        );
    }
    if new.bootstrap.is_none() {
        new.phase = Phase::Failed;
    }
    new.reason = words.to_owned();
    new.waiting = words.to_owned();
    new.observed_generation = Some(generation);
    new
}

fn member(line: &MemberLine) -> MemberStatus {
    MemberStatus {
        name: line.name.0.clone(),
        id: line.id.map(|id| id.to_string()).unwrap_or_default(),
        role: line.role,
        health: line.health,
        message: line.message.clone(),
        version: line.version.as_ref().map(ToString::to_string).unwrap_or_default(),
        db_size: line.db_size.map(in_kibibytes).unwrap_or_default(),
        db_size_in_use: line.db_in_use.map(in_kibibytes).unwrap_or_default(),
        peer_url: line.peer_url.clone(),
        node: line.node.clone().unwrap_or_default(),
        pod_uid: line.pod.as_ref().map(|uid| uid.0.clone()).unwrap_or_default(),
        claim_uid: line.claim.as_ref().map(|uid| uid.0.clone()).unwrap_or_default(),
    }
}

fn in_kibibytes(bytes: u64) -> String {
    format!("{}Ki", bytes >> 10)
}

fn member_seen((member, seen): (&MemberName, &LastSeen)) -> MemberSeen {
    MemberSeen {
        member: member.0.clone(),
        pod_uid: seen.pod.0.clone(),
        node: seen.node.clone().unwrap_or_default(),
        attached: seen.attached.clone().unwrap_or_default(),
        ended: seen.ended,
    }
}

fn bootstrap_record(old: &EtcdClusterStatus, intent: &Intent, bootstrap: &Bootstrapped, now: &Time) -> BootstrapRecord {
    let mut record = old.bootstrap.clone().unwrap_or_else(|| BootstrapRecord {
        strategy: intent.bootstrap,
        ephemeral: !intent.is_durable(),
        started_at: Some(now.clone()),
        ..BootstrapRecord::default()
    });
    record.token = bootstrap.token.clone();
    record.seed = bootstrap.first.first().map(|name| name.0.clone()).unwrap_or_default();
    record.members = if bootstrap.first.len() > 1 {
        bootstrap.first.iter().map(|name| name.0.clone()).collect()
    } else {
        Vec::new()
    };
    if bootstrap.cluster.is_some() && record.phase != BootstrapPhase::Done {
        record.phase = BootstrapPhase::Done;
        record.completed_at = Some(now.clone());
    }
    record
}

fn recovery_record(old: &EtcdClusterStatus, record: &Record, now: &Time) -> Option<RecoveryRecord> {
    if record.recovery.is_none() && record.quorum_lost.is_none() {
        return None;
    }
    let mut new = old.recovery.clone().unwrap_or_default();
    new.seed = String::new();
    new.lost_at = record.quorum_lost.map(Time);
    new.restore = record.asked.clone().unwrap_or_default();
    match &record.recovery {
        None if record.asked.is_some() => {
            new.method = OnQuorumLoss::FromBackup;
            new.phase = RecoveryPhase::Lost;
        }
        None => new.phase = RecoveryPhase::Lost,
        Some(recovering) => {
            new.method = OnQuorumLoss::FromSurvivor;
            new.served = recovering.served;
            new.seed = recovering.survivor.0.clone();
            new.phase = if recovering.started {
                RecoveryPhase::Seeding
            } else {
                RecoveryPhase::Stopping
            };
            new.started_at = new.started_at.or_else(|| Some(now.clone()));
        }
    }
    Some(new)
}

fn restore_record(old: &EtcdClusterStatus, restore: &Restoring, now: &Time) -> RestoreRecord {
    let before = old
        .restore
        .as_ref()
        .filter(|before| before.restore_uid == restore.uid.0);
    let done = restore.step == RestoreStep::Done;
    RestoreRecord {
        restore_uid: restore.uid.0.clone(),
        name: restore.name.clone(),
        phase: match restore.step {
            RestoreStep::Stopping => RestorePhase::Replacing,
            RestoreStep::Seeding => RestorePhase::Seeding,
            RestoreStep::Done => RestorePhase::Complete,
        },
        token: restore.token.clone(),
        seed: restore.seed.0.clone(),
        old_claims: claim_records(&restore.old_claims),
        source: restore.source.as_ref().clone(),
        recovery: restore.recovery,
        lost: super::requests::lost(&restore.source),
        started_at: before
            .and_then(|before| before.started_at.clone())
            .or_else(|| Some(now.clone())),
        completed_at: before
            .and_then(|before| before.completed_at.clone())
            .or_else(|| done.then(|| now.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::etcd_cluster::MemberHealth;
    use crate::cluster::OldLog;

    #[test]
    fn hibernation_is_remembered_across_releases() {
        let written = |hibernating: Option<bool>, reason: &str| {
            let status = serde_json::json!({
                "hibernating": hibernating,
                "conditions": [{"type": "Available", "status": "False", "reason": reason}],
            });
            serde_json::from_value::<EtcdClusterStatus>(status).expect("a status")
        };
        // given a status of a release with or without the field, when it is read, then the field decides where it is there
        for (field, reason, hibernates) in [
            (None, "Hibernating", true),
            (None, "QuorumServes", false),
            (Some(false), "Hibernating", false),
            (Some(true), "QuorumLost", true),
        ] {
            assert_eq!(
                record(&written(field, reason)).hibernating,
                hibernates,
                "{field:?} {reason}"
            );
        }
        // and what is written now has both forms, so that the release before can read it
        let record = Record {
            hibernating: true,
            ..Record::default()
        };
        let report = Report {
            available: Statement {
                reason: Reason::Hibernating,
                ..Statement::default()
            },
            ..Report::default()
        };
        let new = status(
            &EtcdClusterStatus::default(),
            &intent(),
            &record,
            &report,
            Timestamp::UNIX_EPOCH,
        );
        let available = conditions::get(&new.conditions, types::AVAILABLE).map(|condition| condition.reason.as_str());
        assert_eq!((new.hibernating, available), (Some(true), Some("Hibernating")));
    }

    fn intent() -> Intent {
        let cluster: crate::api::EtcdCluster = serde_json::from_value(
            serde_json::json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {"size": 3}}),
        )
        .expect("a cluster");
        Intent::of(&cluster, false).expect("a good spec")
    }

    #[test]
    fn the_record_survives_the_way_through_the_status() {
        // given a record with everything in it
        let id = MemberId(0xabc);
        let record = Record {
            bootstrap: Some(Bootstrapped {
                token: "t".into(),
                first: vec!["a".into(), "b".into()],
                cluster: Some(ClusterId(7)),
            }),
            members: [(
                "a".into(),
                Remembered {
                    id: Some(id),
                    voter: true,
                    peer_url: "http://a".into(),
                },
            )]
            .into(),
            current: "3.5.35".parse().ok(),
            target: "3.6.16".parse().ok(),
            quorum_lost: "2026-01-01T00:00:00Z".parse().ok(),
            recovery: Some(Recovering {
                survivor: "a".into(),
                started: true,
                served: true,
            }),
            asked: Some("c-recovery-x".into()),
            restore: Some(Restoring {
                uid: Uid("r".into()),
                name: "c".into(),
                recovery: true,
                source: Box::new(crate::api::etcd_restore::RestoreSource {
                    location: "bucket/file".into(),
                    revision: 7,
                    ..Default::default()
                }),
                token: "t".into(),
                seed: "s".into(),
                old_claims: vec![("a".into(), Uid("u".into()))],
                step: RestoreStep::Seeding,
            }),
            hibernating: false,
            upgrade_backup: Some("c-before-3.6.16-abcde".into()),
            crash_replaced: Some(CrashReplaced {
                at: "2026-01-01T00:00:00Z".parse().expect("a time"),
                times: 2,
            }),
            defragmented: Some(Defragmented {
                scheduled: "2026-01-01T00:00:00Z".parse().expect("a time"),
                members: vec!["a".into()],
            }),
            ready_for: "3.6.16".parse().ok(),
            old_log: Some(OldLog::Sweeping),
            cluster_ids: vec![ClusterId(5), ClusterId(7)],
            last_seen: [(
                "a".into(),
                LastSeen {
                    pod: Uid("p".into()),
                    node: Some("n".into()),
                    attached: Some("v".into()),
                    ended: true,
                },
            )]
            .into(),
            other_voters: Some(vec!["old-0".into()]),
            replaced_claims: vec![("c".into(), Uid("w".into()))],
            old_claims: Some(OldClaims {
                claims: vec![("b".into(), Uid("u".into()))],
                served: "2026-01-01T00:00:00Z".parse().expect("a time"),
            }),
        };
        let intent = intent();
        let line = MemberLine {
            name: "a".into(),
            id: Some(id),
            role: Some(MemberRole::Follower),
            version: None,
            ready: true,
            health: MemberHealth::Healthy,
            message: String::new(),
            db_size: None,
            db_in_use: None,
            peer_url: "http://a".into(),
            node: None,
            pod: None,
            claim: None,
        };
        let report = Report {
            members: vec![line],
            current: record.current.clone(),
            target: record.target.clone(),
            ..Report::default()
        };
        // when it is written and read
        let now = "2026-01-01T00:00:01Z".parse().expect("a time");
        let written = status(&EtcdClusterStatus::default(), &intent, &record, &report, now);
        // then it is the same, and writing it again changes nothing
        assert_eq!(super::record(&written), record);
        let later = "2026-01-01T00:00:09Z".parse().expect("a time");
        assert_eq!(status(&written, &intent, &record, &report, later), written);
    }
}
