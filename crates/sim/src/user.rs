//! The user: creates, edits, deletes and recreates the cluster, also with bad values, and reverts edits.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use stateward_etcd::api::{EtcdCluster, EtcdClusterSpec, EtcdVersion};
use stateward_etcd::cluster::guard::FRESH_FOR;
use stateward_etcd::cluster::{Bootstrap, Intent, Record, Recovery, ServiceHashes, Storage, check_path};

use crate::kube::{Cluster, uid};
use crate::queue::{Event, Ms};
use crate::rng::Rng;
use crate::sim::{Sim, Truth};

#[derive(Default)]
pub(crate) struct User {
    /// Counts edits, so that each one gives another value.
    edits: u32,
    /// The last template that works.
    good: String,
    /// The intent from which a deleted cluster is created again.
    last: Option<Intent>,
    /// The size before the last edit, and when that was.
    size_before: Option<(Ms, usize)>,
}

const VERSIONS: &[(u64, u64)] = &[
    (2, 13),
    (3, 27),
    (4, 23),
    (4, 30),
    (5, 9),
    (5, 26),
    (5, 35),
    (6, 11),
    (6, 16),
    (7, 3),
];

fn version(rng: &mut Rng) -> EtcdVersion {
    let (minor, patch) = VERSIONS[rng.index(VERSIONS.len())];
    EtcdVersion::new(3, minor, patch)
}

pub(crate) fn size(rng: &mut Rng) -> usize {
    *rng.pick(&[1, 2, 3, 3, 3, 4, 5, 5, 7]).unwrap_or(&3)
}

/// The intent of the first spec.
pub(crate) fn first_intent(rng: &mut Rng) -> Intent {
    let long = Duration::from_secs(1200);
    Intent {
        // The model needs no manifests.
        cluster: Arc::new(EtcdCluster::new("demo", EtcdClusterSpec::default())),
        agent_image: String::new(),
        namespace: "default".into(),
        name: "demo".into(),
        domain: String::new(),
        uid: uid(0),
        generation: 1,
        size: size(rng),
        version: if rng.per_mille(500) {
            EtcdVersion::new(3, 6, 16)
        } else {
            version(rng)
        },
        paused: false,
        hibernate: false,
        bootstrap: if rng.per_mille(700) {
            Bootstrap::SeedThenJoin
        } else {
            Bootstrap::Parallel
        },
        storage: if rng.per_mille(800) {
            Storage::Durable { bytes: 1 << 30 }
        } else {
            Storage::Ephemeral
        },
        tls: false,
        on_delete: false,
        min_ready: Duration::ZERO,
        client_tls: false,
        peer_secret: None,
        template: "t0".into(),
        sweeps: false,
        metadata: "m0".into(),
        services: ServiceHashes {
            peer: "p".into(),
            client: "c".into(),
            budget: "b".into(),
        },
        recovery: match rng.between(0, 3) {
            0 | 1 => Recovery::Report,
            2 => Recovery::FromSurvivor(Duration::from_secs(30)),
            _ => Recovery::FromBackup(Duration::from_secs(30)),
        },
        replace_after: *rng
            .pick(&[Duration::from_secs(60), Duration::from_secs(300), long])
            .unwrap_or(&long),
        confirmed_lost: BTreeSet::new(),
        keep_old_claims: *rng
            .pick(&[Duration::ZERO, Duration::from_secs(60), Duration::from_secs(300)])
            .unwrap_or(&long),
        recovery_backup: None,
        backup_first: false,
        backup: None,
        retain_claims: false,
        ignore_old_claims: false,
        adopt: Vec::new(),
        release_adopted: false,
        defragmentation: None,
    }
}

impl Sim<'_> {
    pub(crate) fn create_cluster(&mut self, mut intent: Intent) {
        let id = self.kube.new_id();
        intent.uid = uid(id);
        intent.generation = 1;
        intent.retain_claims = self.profile.retain_claims;
        self.user.good = intent.template.clone();
        self.user.last = Some(intent.clone());
        self.log(|| {
            format!(
                "user: creates the cluster: {} members of etcd {}, {:?}, {:?}, {:?}",
                intent.size, intent.version, intent.bootstrap, intent.storage, intent.recovery
            )
        });
        self.truth = Truth {
            owner: id,
            ..Truth::default()
        };
        self.begin_trust();
        let version = self.kube.new_version();
        self.kube.now.cluster = Some(Rc::new(Cluster {
            id,
            version,
            intent,
            status: Rc::default(),
            record: Record::default(),
            report: None,
        }));
        self.kube.changed = true;
    }

    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Intent)) {
        let Some(cluster) = self.kube.cluster_mut() else { return };
        let before = cluster.intent.clone();
        change(&mut cluster.intent);
        cluster.intent.generation += 1;
        let after = cluster.intent.clone();
        self.user.last = Some(after.clone());
        self.user.size_before = Some((self.now, before.size));
        self.log(|| format!("user: edits the spec:{}", difference(&before, &after)));
    }

    /// The smallest size that an operator may act on: the size may be edited after the operator last read it.
    pub(crate) fn smallest_size(&self, now: usize) -> usize {
        let window = FRESH_FOR.as_millis() as Ms;
        let lately = self.user.size_before.filter(|(at, _)| at + window > self.now);
        lately.map_or(now, |(_, before)| before.min(now))
    }

    pub(crate) fn delete_cluster(&mut self) {
        self.log(|| "user: deletes the cluster".into());
        self.kube.now.cluster = None;
        self.kube.changed = true;
        self.truth = Truth::default();
        let soon = self.now + self.rng.between(100, 5000);
        self.queue.at(soon, Event::Collect);
    }

    /// One edit, good or bad.
    pub(crate) fn draw_edit(&mut self) {
        self.user.edits += 1;
        let number = self.user.edits;
        let back = self.now + self.rng.between(500, 90_000);
        match self.rng.between(0, 15) {
            13..=15 => self.draw_restore(),
            0..=3 => {
                let (first, second) = (size(&mut self.rng), size(&mut self.rng));
                self.edit(|intent| intent.size = first);
                if self.rng.per_mille(250) {
                    self.edit(|intent| intent.size = second);
                }
            }
            4 => {
                let template = format!("t{number}");
                self.user.good.clone_from(&template);
                self.edit(|intent| intent.template = template);
            }
            5 => {
                let kind = self
                    .rng
                    .pick(&["bad-image", "bad-selector", "bad-flag", "bad-label"])
                    .copied()
                    .unwrap_or("bad-image");
                self.edit(|intent| intent.template = format!("t{number}-{kind}"));
                self.queue.at(back, Event::Revert);
            }
            6 => self.edit(|intent| intent.metadata = format!("m{number}")),
            7 | 8 => self.edit_version(),
            9 => {
                self.edit(|intent| intent.paused = true);
                self.queue.at(back, Event::Revert);
            }
            10 => {
                self.edit(|intent| intent.hibernate = true);
                self.queue.at(back, Event::Revert);
            }
            11 => self.edit(|intent| {
                if let Storage::Durable { bytes } = &mut intent.storage {
                    *bytes *= 2;
                }
            }),
            _ => {
                if self.rng.per_mille(300) {
                    self.delete_cluster();
                    let soon = self.now + self.rng.between(1, 8000);
                    self.queue.at(soon, Event::Revert);
                }
            }
        }
    }

    /// Any version: the planner rejects the paths that etcd does not support.
    fn edit_version(&mut self) {
        let mut wanted = version(&mut self.rng);
        let Some((intent, record)) = self.present() else { return };
        let (from, known) = (intent.version.clone(), record.current.is_some());
        // Most users read the release notes.
        for _ in 0..6 {
            if check_path(&from, &wanted).is_ok() && wanted.minor() >= from.minor() {
                break;
            }
            wanted = version(&mut self.rng);
        }
        // Before a cluster has reported its version, another minor version cannot be rejected, and only the user can
        // revert it.
        if known || wanted.same_minor(&from) {
            self.edit(|intent| intent.version = wanted);
        }
    }

    /// The user reverts bad or temporary values, or creates what was deleted.
    pub(crate) fn revert(&mut self) {
        let Some(cluster) = &self.kube.now.cluster else {
            if let Some(mut intent) = self.user.last.clone() {
                intent.template.clone_from(&self.user.good);
                intent.paused = false;
                intent.hibernate = false;
                self.create_cluster(intent);
            }
            return;
        };
        let intent = &cluster.intent;
        let good = self.user.good.clone();
        if intent.paused || intent.hibernate || intent.template != good {
            self.edit(|intent| {
                intent.paused = false;
                intent.hibernate = false;
                intent.template = good;
            });
        }
    }
}

fn difference(before: &Intent, after: &Intent) -> String {
    let mut message = String::new();
    let mut say = |what: &str, old: String, new: String| {
        if old != new {
            message.push_str(&format!(" {what} {old} -> {new}"));
        }
    };
    say("size", before.size.to_string(), after.size.to_string());
    say("version", before.version.to_string(), after.version.to_string());
    say("template", before.template.clone(), after.template.clone());
    say("metadata", before.metadata.clone(), after.metadata.clone());
    say("paused", before.paused.to_string(), after.paused.to_string());
    say("hibernate", before.hibernate.to_string(), after.hibernate.to_string());
    say(
        "storage",
        format!("{:?}", before.storage),
        format!("{:?}", after.storage),
    );
    say(
        "recovery",
        format!("{:?}", before.recovery),
        format!("{:?}", after.recovery),
    );
    message
}
