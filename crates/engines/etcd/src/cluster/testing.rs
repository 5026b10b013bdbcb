//! Small worlds for the tests of the chapters. They begin with three healthy members, `c-a` (the leader), `c-b` and `c-c`, that
//! are as the spec says, or with nothing; a test says what differs, and what is done and said then.

use std::time::Duration;

use crate::api::EtcdVersion;
use jiff::Timestamp;
use stateward_core::pod::Facts;

use super::{
    Bootstrapped, Claim, ClusterId, Effect, Exit, Intent, LaunchKind, Listed, MemberId, MemberList, MemberName,
    MemberProbe, NoReply, NoReplyKind, Plan, Pod, Reason, Record, Remembered, Reply, Services, TlsStage, Uid, View,
    World, plan,
};

pub(super) const CLUSTER: ClusterId = ClusterId(9);

/// What a round is planned with.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) intent: Intent,
    pub(super) record: Record,
    pub(super) world: World,
    pub(super) now: Timestamp,
}

/// A spec that was never looked at.
pub(super) fn nothing() -> Given {
    with_spec(serde_json::json!({"size": 3, "version": "3.5.35"}))
}

/// The same with another spec.
pub(super) fn with_spec(spec: serde_json::Value) -> Given {
    let cluster = serde_json::json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": spec});
    let cluster: crate::api::EtcdCluster = serde_json::from_value(cluster).expect("a cluster");
    let intent = Intent::of(&cluster, false).expect("a good spec");
    let world = World {
        services: Services {
            peer: Some(intent.services.peer.clone()),
            client: Some(intent.services.client.clone()),
            budget: Some(intent.services.budget.clone()),
        },
        fresh_names: vec!["c-new".into(), "c-newer".into()],
        fresh_token: "token".into(),
        ..World::default()
    };
    Given {
        intent,
        record: Record::default(),
        world,
        now: "2026-01-01T00:00:00Z".parse().expect("a time"),
    }
}

/// Three healthy members.
pub(super) fn three() -> Given {
    nothing().with_members(&["c-a", "c-b", "c-c"])
}

impl Given {
    /// These are the members, and all is as the spec says. The first leads.
    pub(super) fn with_members(mut self, names: &[&str]) -> Self {
        let names = names.iter().copied();
        let lines: Vec<Listed> = (1..)
            .map(MemberId)
            .zip(names)
            .map(|(id, name)| self.line(id, name))
            .collect();
        self.record.bootstrap = Some(Bootstrapped {
            token: "token".into(),
            first: lines.iter().take(1).filter_map(|line| line.name.clone()).collect(),
            cluster: Some(CLUSTER),
        });
        self.record.current = Some(self.intent.version.clone());
        self.record.target = Some(self.intent.version.clone());
        self.world.list = Some(MemberList {
            cluster: CLUSTER,
            leader: Some(MemberId(1)),
            members: lines.clone(),
        });
        for line in lines {
            let name = line.name.clone().expect("a name");
            self = self.with_objects(&name.0).answers(&name.0, line.id);
            let known = Remembered {
                id: Some(line.id),
                voter: true,
                peer_url: line.peer_urls[0].clone(),
            };
            self.record.members.insert(name, known);
        }
        self
    }

    fn line(&self, id: MemberId, name: &str) -> Listed {
        Listed {
            id,
            name: Some(name.into()),
            peer_urls: vec![self.intent.peer_url(&name.into(), false)],
            learner: false,
        }
    }

    /// A member's pod, which runs, and its claim.
    pub(super) fn with_objects(mut self, name: &str) -> Self {
        let pod = Pod {
            facts: Facts {
                uid: Uid(format!("pod-{name}")),
                node: Some(format!("node-of-{name}")),
                running: true,
                running_since: Some(Timestamp::UNIX_EPOCH),
                ever_ran: true,
                ready: true,
                ready_since: Some(Timestamp::UNIX_EPOCH),
                ..Facts::default()
            },
            version: self.intent.version.clone(),
            template: self.intent.template.clone(),
            metadata: self.intent.metadata.clone(),
            launch: LaunchKind::Sealed,
            initial_cluster: Vec::new(),
            tls: TlsStage::Off,
            trusts: None,
            marked_to_leave: false,
        };
        self.world.pods.insert(name.into(), pod);
        if self.intent.is_durable() {
            let claim = Claim {
                uid: Uid(format!("claim-{name}")),
                bound: true,
                terminating: false,
                problem: None,
                requested: u64::MAX,
                lost: false,
                volume: Some(format!("volume-{name}")),
                created: Timestamp::UNIX_EPOCH,
            };
            self.world.claims.insert(name.into(), claim);
        }
        self
    }

    /// A member answers and sees a leader.
    pub(super) fn answers(mut self, name: &str, id: MemberId) -> Self {
        let list = self.world.list.as_ref();
        let reply = Reply {
            id,
            cluster: CLUSTER,
            leader: Some(MemberId(1)),
            learner: false,
            version: self.intent.version.clone(),
            storage_minor: None,
            cluster_minor: Some(self.intent.version.minor()),
            downgrading: None,
            term: 2,
            index: 100,
            db_size: 1 << 20,
            db_in_use: 1 << 20,
            list: list.map(|list| list.members.clone()).unwrap_or_default(),
        };
        self.world.probes.insert(name.into(), MemberProbe::Reply(reply));
        self
    }

    /// A member does not answer.
    pub(super) fn silent(mut self, name: &str) -> Self {
        let why_no_reply = NoReply::new(NoReplyKind::NotReached, "connection refused");
        self.world
            .probes
            .insert(name.into(), MemberProbe::NoReply(why_no_reply));
        self
    }

    /// A member's pod is gone; its claim stays.
    pub(super) fn without_pod(mut self, name: &str) -> Self {
        self.world.pods.remove(&MemberName::from(name));
        self.world.probes.remove(&MemberName::from(name));
        self
    }

    /// A member's pod and claim are gone, and its kubelet said that the pod has ended.
    pub(super) fn lost(mut self, name: &str) -> Self {
        self.world.ended_pods.insert(Uid(format!("pod-{name}")));
        // It was seen in a round before.
        super::gone::remember(&self.intent, &mut self.record, &self.world);
        self.world.claims.remove(&MemberName::from(name));
        self.without_pod(name)
    }

    /// No quorum proves a member list, and those that answer see no leader.
    pub(super) fn without_quorum(mut self) -> Self {
        self.world.list = None;
        for probe in self.world.probes.values_mut() {
            if let MemberProbe::Reply(reply) = probe {
                reply.leader = None;
            }
        }
        self
    }

    /// A line of the list differs.
    pub(super) fn listed(mut self, name: &str, change: impl FnOnce(&mut Listed)) -> Self {
        let (intent, list) = (&self.intent, self.world.list.as_mut().expect("a list"));
        let is_it = |line: &&mut Listed| super::members::owner(intent, line) == Some(name.into());
        change(list.members.iter_mut().find(is_it).expect("a member"));
        self
    }

    /// A pod differs.
    pub(super) fn pod(mut self, name: &str, change: impl FnOnce(&mut Pod)) -> Self {
        change(self.world.pods.get_mut(&MemberName::from(name)).expect("a pod"));
        self
    }

    /// Anything else that was observed differs.
    pub(super) fn world(mut self, change: impl FnOnce(&mut World)) -> Self {
        change(&mut self.world);
        self
    }

    /// The spec was edited.
    pub(super) fn spec(mut self, change: impl FnOnce(&mut Intent)) -> Self {
        change(&mut self.intent);
        self
    }

    /// The record differs.
    pub(super) fn record(mut self, change: impl FnOnce(&mut Record)) -> Self {
        change(&mut self.record);
        self
    }

    /// The plan of a round.
    pub(super) fn plan(&self) -> Plan {
        plan(&self.intent, &self.record, &self.world, self.now)
    }

    /// What a chapter sees.
    pub(super) fn look<T>(&self, at: impl FnOnce(&View<'_>) -> T) -> T {
        let mut record = self.record.clone();
        super::remember(&self.intent, &mut record, &self.world, self.now);
        let (version, refused) = super::upgrade_path::accepted(&self.intent, &record, &self.world);
        let view = View {
            intent: &self.intent,
            world: &self.world,
            record: &record,
            now: self.now,
            members: super::members::judge(&self.intent, &record, &self.world, self.now),
            new_pods: super::upgrade_path::of_new_pods(&record, &version),
            version,
            refused,
            stage: super::rotation::stage(&self.intent, &self.world),
        };
        at(&view)
    }

    /// When a round is planned, then this is said and done. Events are left out.
    #[track_caller]
    pub(super) fn then(&self, reason: Reason, effects: &[&str]) -> Plan {
        let plan = self.plan();
        let done = plan.effects.iter().filter(|effect| !matches!(effect, Effect::Tell(_)));
        let done: Vec<String> = done.map(ToString::to_string).collect();
        assert_eq!(
            done, effects,
            "{}: {}",
            plan.report.progressing.reason, plan.report.waiting
        );
        assert_eq!(plan.report.progressing.reason, reason, "{}", plan.report.waiting);
        plan
    }
}

/// etcd ended with these last words, again and again.
pub(super) fn crashes(pod: &mut Pod, words: &str) {
    pod.running = false;
    pod.restarts = 9;
    pod.last_exit = Some(Exit {
        code: 1,
        message: words.to_owned(),
        at: Timestamp::UNIX_EPOCH,
    });
}

pub(super) fn version(text: &str) -> EtcdVersion {
    text.parse().expect("a version")
}

pub(super) const MINUTE: Duration = Duration::from_secs(60);
