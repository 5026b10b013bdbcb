//! Small worlds for the tests of the chapters. They begin with three healthy members, `orders-0` (the primary), `orders-1` and
//! `orders-2`, that are as the spec says, or with nothing; a test says what differs, and what is done and said then.

#![allow(dead_code, reason = "tables of single chapters use some of it")]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use stateward_core::Uid;
use stateward_core::claim::Claim;
use stateward_core::kind::Plan;
use stateward_core::pod::Facts;

use crate::action::Action;
use crate::api::MySQLCluster;
use crate::gtid::GtidSet;
use crate::intent::Intent;
use crate::kind::MySQLClusters;
use crate::manifests;
use crate::memory::{Bootstrap, Memory};
use crate::reason::Reason;
use crate::world::{
    Channel, Member, NoReply, Object, Ordinal, Pod, Process, Receiver, Reply, Role, Secrets, Server, SourceState,
    StatefulSet, Tls, World,
};

/// What a reconcile is planned with.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) intent: Intent,
    pub(super) memory: Memory,
    pub(super) world: World,
    pub(super) now: Timestamp,
    spec: serde_json::Value,
    annotations: BTreeMap<String, String>,
}

pub(super) type Planned = Plan<MySQLClusters>;

/// The UUID of the server of a member.
pub(super) fn uuid(member: u32) -> u128 {
    0x10 + u128::from(member)
}

/// The first `last` transactions of the server of a member.
pub(super) fn gtids(member: u32, last: u64) -> GtidSet {
    GtidSet::range(uuid(member), 1, last)
}

/// A spec that was never looked at.
pub(super) fn nothing() -> Given {
    with_spec(serde_json::json!({"size": 3, "version": "9.7.4"}))
}

/// The same with another spec.
pub(super) fn with_spec(spec: serde_json::Value) -> Given {
    let mut given = Given {
        intent: read(&spec, &BTreeMap::new(), &Memory::default()),
        memory: Memory::default(),
        world: World::default(),
        now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        spec,
        annotations: BTreeMap::new(),
    };
    given.world.secrets = Secrets {
        complete: true,
        rotation: String::new(),
    };
    given.world.tls = Tls {
        issued: true,
        ..Tls::default()
    };
    given.with_objects()
}

/// Three healthy members that were written to.
pub(super) fn three() -> Given {
    nothing().with_members(3)
}

fn read(spec: &serde_json::Value, annotations: &BTreeMap<String, String>, memory: &Memory) -> Intent {
    let object = serde_json::json!({"metadata": {"name": "orders", "namespace": "ns", "uid": "u", "annotations": annotations},
        "spec": spec});
    let cluster: MySQLCluster = serde_json::from_value(object).expect("a cluster");
    Intent::of(&cluster, memory).expect("a good spec")
}

impl Given {
    fn with_objects(mut self) -> Self {
        use Object::{Budget, Config, Headless, NetworkPolicy, PrimaryService, ReadService};
        let objects = [Config, Headless, PrimaryService, ReadService, Budget, NetworkPolicy];
        let hash = |object| (object, manifests::object_hash(object, &self.intent));
        self.world.objects = objects.into_iter().map(hash).collect();
        self
    }

    /// Member 0 is the primary and the others acknowledge; everything is as the spec says.
    pub(super) fn with_members(mut self, size: u32) -> Self {
        self.memory = Memory {
            bootstrap: Some(Bootstrap {
                seed: Ordinal(0),
                first: gtids(0, 5),
            }),
            primary: Some(Ordinal(0)),
            epoch: 1,
            opened: true,
            acks: self.intent.acks,
            required: self.intent.acks,
            ackers: (1..size).map(Ordinal).collect(),
            current: Some(self.intent.version),
            ..Memory::default()
        };
        self.world.set = Some(StatefulSet {
            uid: Uid("set".into()),
            replicas: size,
            template: manifests::pod_hash(&self.intent),
            metadata: manifests::set_metadata_hash(&self.intent),
            ours: true,
        });
        self.world.ahead = Some(gtids(0, 100));
        for member in (0..size).map(Ordinal) {
            self = self.with_member(member);
            let claim = Uid(format!("claim-{member}"));
            self.memory.claims.insert(member, claim);
        }
        let acks = self.intent.acks;
        self.reply(0, |reply| {
            reply.read_only = false;
            reply.channel = None;
            reply.acknowledges = false;
            reply.acknowledging = false;
        })
        .acks(acks, (1..size).collect())
        .pod(0, |pod| pod.role = Some(Role::Primary))
        .pod(0, |pod| pod.reads = size == 1)
    }

    /// A pod that runs, its claim, and a server that follows the primary 0 and acknowledges.
    pub(super) fn with_member(mut self, member: Ordinal) -> Self {
        let pod = Pod {
            facts: Facts {
                uid: Uid(format!("pod-{member}")),
                running: true,
                ever_ran: true,
                ready: true,
                ..Facts::default()
            },
            role: Some(Role::Replica),
            reads: true,
            template: manifests::pod_hash(&self.intent),
            version: Some(self.intent.version),
            node_ended: false,
        };
        let claim = Claim {
            uid: Uid(format!("claim-{member}")),
            bound: true,
            terminating: false,
            problem: None,
            requested: u64::MAX,
            lost: false,
            volume: None,
            created: Timestamp::UNIX_EPOCH,
        };
        let reply = Reply {
            process: Process {
                uuid: uuid(member.0),
                boot: format!("boot-{member}"),
            },
            server_id: self.intent.server_id(member),
            version: self.intent.version,
            read_only: true,
            executed: gtids(0, 100),
            acknowledges: true,
            acknowledging: true,
            channel: Some(Channel {
                host: self.intent.host(Ordinal(0)),
                receiver: Receiver::Running,
                applier: true,
                retrieved: gtids(0, 100),
                lag: Some(0),
                ..Channel::default()
            }),
            cluster: Some(self.intent.uid.clone()),
            ..Reply::default()
        };
        let observed = Member {
            pod: Some(pod),
            claim: Some(claim),
            owned: true,
            server: Server::Reply(Box::new(reply)),
        };
        self.world.members.insert(member, observed);
        self
    }

    /// How the primary 0 waits, and who is connected to it.
    fn acks(self, acks: u32, connected: BTreeSet<u32>) -> Self {
        let ids = connected
            .into_iter()
            .map(|member| self.intent.server_id(Ordinal(member)))
            .collect();
        self.reply(0, |reply| {
            reply.source = SourceState {
                enabled: acks > 0,
                acks,
                status: acks > 0,
                waiting: 0,
                connected: ids,
            };
        })
    }

    /// A server says something else.
    #[track_caller]
    pub(super) fn reply(mut self, member: u32, change: impl FnOnce(&mut Reply)) -> Self {
        let observed = self.world.members.get_mut(&Ordinal(member)).expect("a member");
        match &mut observed.server {
            Server::Reply(reply) => change(reply),
            Server::NoReply(_) => panic!("{member} does not reply"),
        }
        self
    }

    /// The replication channel of a server differs.
    #[track_caller]
    pub(super) fn channel(self, member: u32, change: impl FnOnce(&mut Channel)) -> Self {
        self.reply(member, |reply| change(reply.channel.as_mut().expect("a channel")))
    }

    /// A receiver was stopped, and lets nothing acknowledge when it starts.
    pub(super) fn fenced(self, member: u32) -> Self {
        self.reply(member, |reply| {
            reply.acknowledges = false;
            reply.acknowledging = false;
        })
        .channel(member, |channel| channel.receiver = Receiver::Stopped)
    }

    /// A server restarted, sealed.
    pub(super) fn restarted(self, member: u32) -> Self {
        self.reply(member, |reply| {
            reply.process.boot = "another".into();
            reply.read_only = true;
            reply.acknowledges = false;
            reply.acknowledging = false;
            reply.source = SourceState::default();
            if let Some(channel) = &mut reply.channel {
                channel.receiver = Receiver::Stopped;
                channel.applier = false;
            }
        })
    }

    /// A new volume: an empty server.
    pub(super) fn blank(mut self, member: u32) -> Self {
        let observed = self.world.members.get_mut(&Ordinal(member)).expect("a member");
        if let Some(claim) = &mut observed.claim {
            claim.uid = Uid(format!("new-claim-{member}"));
        }
        self.restarted(member).reply(member, |reply| {
            reply.executed = GtidSet::default();
            reply.channel = None;
            reply.cluster = None;
        })
    }

    /// A server has not replied for ten seconds, though its container runs.
    pub(super) fn silent(mut self, member: u32) -> Self {
        let since = self.now.checked_sub(jiff::SignedDuration::from_secs(10)).ok();
        let observed = self.world.members.get_mut(&Ordinal(member)).expect("a member");
        observed.server = Server::NoReply(NoReply {
            since,
            reason: "timed out".into(),
        });
        if self.memory.primary == Some(Ordinal(member)) {
            self.world.ahead = None;
        }
        self
    }

    /// Its container has ended.
    pub(super) fn crashed(self, member: u32) -> Self {
        self.silent(member).pod(member, |pod| pod.facts.running = false)
    }

    /// A pod differs.
    #[track_caller]
    pub(super) fn pod(mut self, member: u32, change: impl FnOnce(&mut Pod)) -> Self {
        let observed = self.world.members.get_mut(&Ordinal(member)).expect("a member");
        change(observed.pod.as_mut().expect("a pod"));
        self
    }

    /// Anything else that was observed differs.
    pub(super) fn world(mut self, change: impl FnOnce(&mut World)) -> Self {
        change(&mut self.world);
        self
    }

    /// The memory differs.
    pub(super) fn memory(mut self, change: impl FnOnce(&mut Memory)) -> Self {
        change(&mut self.memory);
        self
    }

    /// The spec was edited, and nothing but pods has to follow.
    pub(super) fn edited(mut self, change: impl FnOnce(&mut serde_json::Value)) -> Self {
        change(&mut self.spec);
        self.intent = read(&self.spec, &self.annotations, &self.memory);
        if let Some(set) = &mut self.world.set {
            set.template = manifests::pod_hash(&self.intent);
            set.metadata = manifests::set_metadata_hash(&self.intent);
        }
        self.with_objects()
    }

    /// The user set an annotation.
    pub(super) fn annotated(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.into(), value.into());
        self.intent = read(&self.spec, &self.annotations, &self.memory);
        self
    }

    pub(super) fn plan(&self) -> Planned {
        super::plan(&self.intent, &self.memory, &self.world, self.now)
    }

    /// When a reconcile is planned, then this is said and done. Events are left out.
    #[track_caller]
    pub(super) fn then(&self, reason: Reason, actions: &[&str]) -> Planned {
        let plan = self.plan();
        let done = plan.actions.iter().filter(|action| !matches!(action, Action::Tell(_)));
        let done: Vec<String> = done.map(ToString::to_string).collect();
        assert_eq!(
            done, actions,
            "{}: {}",
            plan.report.progressing.reason, plan.report.waiting
        );
        assert_eq!(plan.report.progressing.reason, reason, "{}", plan.report.waiting);
        plan
    }
}

pub(super) fn ordinals(members: &[u32]) -> BTreeSet<Ordinal> {
    members.iter().copied().map(Ordinal).collect()
}

/// A memory in which every field is set.
pub(super) fn everything(given: Given) -> Given {
    use crate::memory::{Applied, Failover, Passwords, Pending, Quarantine, Switchover};
    let now = given.now;
    given.memory(|memory| {
        memory.pending = Some(Pending {
            ackers: ordinals(&[1]),
            acks: 1,
            must_hold: gtids(0, 7),
        });
        memory.failover = Some(Failover {
            from: Ordinal(0),
            reason: "gone".into(),
            since: now,
        });
        memory.switchover = Some(Switchover {
            from: Ordinal(0),
            to: Ordinal(2),
            since: now,
        });
        memory.switchover_failed = Some(now);
        let quarantine = Quarantine {
            uuid: uuid(2),
            gtids: gtids(2, 3),
            automatic: true,
            saved: true,
        };
        memory.quarantine.insert(Ordinal(2), quarantine);
        memory.received_at_promotion = gtids(0, 9);
        memory.former_primary = Some(Ordinal(2));
        // Members that are not observed any more are remembered too.
        memory.expelled = ordinals(&[1, 7]);
        memory.claims.insert(Ordinal(8), Uid("claim-8".into()));
        let applied = Applied {
            boot: "boot".into(),
            hash: "hash".into(),
            keys: BTreeSet::from(["max_connections".into()]),
        };
        memory.applied.insert(Ordinal(1), applied);
        memory.target = "9.7.5".parse().ok();
        memory.upgrade_backup = Some("before".into());
        memory.hibernating = true;
        memory.passwords = Passwords {
            rotation: "second".into(),
            old_until: Some(now),
        };
        memory.switched_to = Some("orders-2".into());
    })
}
