//! The user: creates, edits, deletes and recreates the cluster, with bad values too, and changes their mind.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use stateward_api::EtcdVersion;
use stateward_plan::etcd::guard::FRESH_FOR;
use stateward_plan::etcd::{Bootstrap, Intent, Record, Recovery, ServiceHashes, Storage, check_path};

use crate::kube::{Cluster, uid};
use crate::queue::{Event, Ms};
use crate::rng::Dice;
use crate::sim::{Ledger, Sim};

#[derive(Default)]
pub(crate) struct User {
    /// Counts edits, so that each is another value.
    edits: u32,
    /// The last template that works.
    good: String,
    /// What a cluster is created from again.
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

fn version(dice: &mut Dice) -> EtcdVersion {
    let (minor, patch) = VERSIONS[dice.index(VERSIONS.len())];
    EtcdVersion::new(3, minor, patch)
}

pub(crate) fn size(dice: &mut Dice) -> usize {
    *dice.pick(&[1, 2, 3, 3, 3, 4, 5, 5, 7]).unwrap_or(&3)
}

/// What the user wants at first.
pub(crate) fn wish(dice: &mut Dice) -> Intent {
    let long = Duration::from_secs(1200);
    Intent {
        namespace: "default".into(),
        name: "demo".into(),
        domain: String::new(),
        uid: uid(0),
        generation: 1,
        size: size(dice),
        version: if dice.per_mille(500) {
            EtcdVersion::new(3, 6, 16)
        } else {
            version(dice)
        },
        paused: false,
        hibernate: false,
        bootstrap: if dice.per_mille(700) {
            Bootstrap::SeedThenJoin
        } else {
            Bootstrap::Parallel
        },
        storage: if dice.per_mille(800) {
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
        recovery: match dice.between(0, 3) {
            0 | 1 => Recovery::Report,
            2 => Recovery::FromSurvivor(Duration::from_secs(30)),
            _ => Recovery::FromBackup(Duration::from_secs(30)),
        },
        replace_after: *dice
            .pick(&[Duration::from_secs(60), Duration::from_secs(300), long])
            .unwrap_or(&long),
        confirmed_lost: BTreeSet::new(),
        keep_old_claims: *dice
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
        self.tell(|| {
            format!(
                "user: creates the cluster: {} members of etcd {}, {:?}, {:?}, {:?}",
                intent.size, intent.version, intent.bootstrap, intent.storage, intent.recovery
            )
        });
        self.ledger = Ledger {
            owner: id,
            ..Ledger::default()
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
        self.tell(|| format!("user: edits the spec:{}", difference(&before, &after)));
    }

    /// The smallest size that an operator may act upon: an edit may come between its last look and the step.
    pub(crate) fn smallest_size(&self, now: usize) -> usize {
        let window = FRESH_FOR.as_millis() as Ms;
        let lately = self.user.size_before.filter(|(at, _)| at + window > self.now);
        lately.map_or(now, |(_, before)| before.min(now))
    }

    pub(crate) fn delete_cluster(&mut self) {
        self.tell(|| "user: deletes the cluster".into());
        self.kube.now.cluster = None;
        self.kube.changed = true;
        self.ledger = Ledger::default();
        let soon = self.now + self.dice.between(100, 5000);
        self.queue.at(soon, Event::Collect);
    }

    /// One edit, good or bad.
    pub(crate) fn draw_edit(&mut self) {
        self.user.edits += 1;
        let number = self.user.edits;
        let back = self.now + self.dice.between(500, 90_000);
        match self.dice.between(0, 15) {
            13..=15 => self.draw_restore(),
            0..=3 => {
                let (first, second) = (size(&mut self.dice), size(&mut self.dice));
                self.edit(|intent| intent.size = first);
                if self.dice.per_mille(250) {
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
                    .dice
                    .pick(&["bad-image", "bad-selector", "bad-flag", "bad-label"])
                    .copied()
                    .unwrap_or("bad-image");
                self.edit(|intent| intent.template = format!("t{number}-{kind}"));
                self.queue.at(back, Event::TakeBack);
            }
            6 => self.edit(|intent| intent.metadata = format!("m{number}")),
            7 | 8 => self.edit_version(),
            9 => {
                self.edit(|intent| intent.paused = true);
                self.queue.at(back, Event::TakeBack);
            }
            10 => {
                self.edit(|intent| intent.hibernate = true);
                self.queue.at(back, Event::TakeBack);
            }
            11 => self.edit(|intent| {
                if let Storage::Durable { bytes } = &mut intent.storage {
                    *bytes *= 2;
                }
            }),
            _ => {
                if self.dice.per_mille(300) {
                    self.delete_cluster();
                    let soon = self.now + self.dice.between(1, 8000);
                    self.queue.at(soon, Event::TakeBack);
                }
            }
        }
    }

    /// Any version: the planner refuses the paths that etcd does not have.
    fn edit_version(&mut self) {
        let mut wanted = version(&mut self.dice);
        let Some((intent, record)) = self.present() else { return };
        let (from, known) = (intent.version.clone(), record.current.is_some());
        // Most users read the release notes.
        for _ in 0..6 {
            if check_path(&from, &wanted).is_ok() && wanted.minor() >= from.minor() {
                break;
            }
            wanted = version(&mut self.dice);
        }
        // Before a cluster has said what it runs, nobody can refuse another minor version, and only the user can take it
        // back.
        if known || wanted.same_minor(&from) {
            self.edit(|intent| intent.version = wanted);
        }
    }

    /// The user takes bad or temporary values back, or creates what was deleted.
    pub(crate) fn take_back(&mut self) {
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
    let mut words = String::new();
    let mut say = |what: &str, old: String, new: String| {
        if old != new {
            words.push_str(&format!(" {what} {old} -> {new}"));
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
    words
}
