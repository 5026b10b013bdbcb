//! The user: edits the spec, takes edits back, and in the end follows the advice of the status.

use std::collections::BTreeMap;

use super::execute::VARIABLE;
use super::server::Ms;
use super::state::Sim;
use crate::api::{
    Acks, Config, Durability, Errant, Failover, MySQLCluster, MySQLClusterSpec, MySQLVersion, PrimaryPolicy, Update,
    WhenNoAcker,
};
use crate::names;

/// What the user remembers.
#[derive(Default)]
pub(super) struct User {
    /// Specs of the past.
    past: Vec<MySQLClusterSpec>,
    pub(super) paused_since: Option<Ms>,
    /// The newest version with an image that was ever asked for.
    newest: MySQLVersion,
    asked: u32,
}

/// The version that histories begin with.
pub(super) const VERSION: &str = "9.7.4";

impl Sim<'_> {
    fn edit(&mut self, what: impl Into<String>, change: impl FnOnce(&mut MySQLCluster)) {
        let what = what.into();
        self.log(|| format!("the user: {what}"));
        self.user.past.push(self.kube.cluster.spec.clone());
        self.kube.edit(change);
        self.note_edit();
    }

    fn note_edit(&mut self) {
        let spec = &self.kube.cluster.spec;
        let version: Option<MySQLVersion> = spec.version.as_deref().and_then(|version| version.parse().ok());
        if let Some(version) = version.filter(|version| self.image_exists(*version)) {
            self.user.newest = self.user.newest.max(version);
        }
        let now = self.now;
        if spec.paused {
            self.user.paused_since.get_or_insert(now);
        } else {
            self.user.paused_since = None;
        }
        self.changed = true;
        self.news = true;
    }

    fn annotate(&mut self, key: &str, value: String) {
        self.edit(format!("{key}: {value}"), |cluster| {
            cluster
                .metadata
                .annotations
                .get_or_insert_default()
                .insert(key.into(), value);
        });
    }

    pub(super) fn user_edits(&mut self) {
        let size = self.kube.cluster.spec.size;
        let upto = |sim: &mut Self, most: i32| sim.rng.between(0, most.max(0).unsigned_abs().into());
        match self.rng.between(0, 16) {
            0..=2 => {
                let size = *self.rng.pick(&[1, 2, 3, 3, 4, 5, 5, 7]).unwrap_or(&3);
                self.edit(format!("size {size}"), |cluster| resize(cluster, size));
            }
            3 => {
                let acks = i64::try_from(upto(self, size - 1)).unwrap_or(0);
                let acks = if self.rng.per_mille(400) {
                    Acks::Word("Auto".into())
                } else {
                    Acks::Number(acks)
                };
                self.edit(format!("acks {acks:?}"), |cluster| {
                    durability(cluster).acks = Some(acks)
                });
            }
            4 | 5 => {
                let prefer = i64::try_from(upto(self, size - 1))
                    .ok()
                    .filter(|_| self.rng.per_mille(800));
                self.edit(format!("prefer {prefer:?}"), |cluster| {
                    cluster.spec.primary = Some(PrimaryPolicy { prefer });
                });
            }
            6 => {
                let value = self.rng.between(100, 999);
                let role = self.rng.between(0, 2);
                self.edit(format!("config {role} {value}"), |cluster| {
                    let config = cluster.spec.config.get_or_insert_with(Config::default);
                    let block = match role {
                        0 => &mut config.all,
                        1 => &mut config.primary,
                        _ => &mut config.replica,
                    };
                    block.insert(VARIABLE.into(), value.into());
                });
            }
            7 | 8 => self.ask_for_version(),
            9 => {
                let repository = format!("example/mysql{}", self.rng.between(1, 9));
                self.edit(format!("repository {repository}"), |cluster| {
                    cluster.spec.repository = Some(repository)
                });
            }
            10 => {
                self.user.asked += 1;
                let member = self.any_member();
                let pod = names::pod(self.kube.cluster.name(), member);
                self.annotate(names::ANNOTATION_SWITCHOVER, pod);
            }
            11 => {
                let member = self.any_member();
                let pod = names::pod(self.kube.cluster.name(), member);
                self.annotate(names::ANNOTATION_DISCARD, pod);
            }
            12 => {
                let paused = !self.kube.cluster.spec.paused;
                self.edit(format!("paused {paused}"), |cluster| cluster.spec.paused = paused);
            }
            13 => {
                let hibernate = !self.kube.cluster.spec.hibernate;
                self.edit(format!("hibernate {hibernate}"), |cluster| {
                    cluster.spec.hibernate = hibernate
                });
            }
            14 => {
                self.user.asked += 1;
                let rotation = self.user.asked.to_string();
                self.annotate(names::ANNOTATION_ROTATE, rotation);
            }
            15 => {
                let (degrade, ask) = (self.rng.per_mille(500), self.rng.per_mille(500));
                self.edit(format!("degrade {degrade}, ask {ask}"), |cluster| {
                    durability(cluster).when_no_acker = degrade.then_some(WhenNoAcker::Degrade);
                    cluster.spec.failover = Some(Failover {
                        errant: ask.then_some(Errant::Ask),
                        ..Failover::default()
                    });
                });
            }
            _ => {
                if let Some(old) = self.rng.pick(&self.user.past).cloned() {
                    self.edit("an earlier spec", |cluster| cluster.spec = old);
                }
            }
        }
    }

    fn ask_for_version(&mut self) {
        let patch = self.user.newest.patch.max(4);
        let version = if self.rng.per_mille(250) {
            "9.7.99".to_owned() // There is no such image.
        } else {
            format!("9.7.{}", patch + 1)
        };
        let partition = self.rng.between(0, 3);
        let partition = i64::try_from(partition).ok().filter(|partition| *partition < 2);
        self.edit(format!("version {version}, partition {partition:?}"), |cluster| {
            cluster.spec.version = Some(version);
            cluster.spec.update = Some(Update {
                partition,
                ..Update::default()
            });
        });
    }

    /// What is left of the edits in the end can be followed.
    pub(super) fn user_heals(&mut self) {
        let newest = self.user.newest.max(VERSION.parse().unwrap_or_default());
        self.edit("heals the spec", |cluster| {
            let spec = &mut cluster.spec;
            spec.paused = false;
            spec.hibernate = false;
            spec.version = Some(newest.to_string());
            spec.update = None;
            let size = spec.size;
            resize(cluster, size);
        });
    }

    /// Members with transactions of their own wait for the user's word.
    pub(super) fn user_follows_advice(&mut self) {
        let quarantine = &self.truth.memory.quarantine;
        let name = self.kube.cluster.name();
        let asked: Vec<String> = quarantine.keys().map(|member| names::pod(name, *member)).collect();
        let value = asked.join(",");
        let annotation = self
            .kube
            .cluster
            .annotation(names::ANNOTATION_DISCARD)
            .unwrap_or_default()
            .to_owned();
        if !value.is_empty() && value != annotation {
            self.annotate(names::ANNOTATION_DISCARD, value);
        }
    }
}

fn durability(cluster: &mut MySQLCluster) -> &mut Durability {
    cluster.spec.durability.get_or_insert_with(Durability::default)
}

/// The other fields must allow the size.
fn resize(cluster: &mut MySQLCluster, size: i32) {
    let spec = &mut cluster.spec;
    spec.size = size;
    if let Some(Acks::Number(acks)) = durability(cluster).acks
        && acks >= i64::from(size)
    {
        durability(cluster).acks = None;
    }
    let primary = cluster.spec.primary.get_or_insert_with(PrimaryPolicy::default);
    primary.prefer = primary.prefer.filter(|prefer| *prefer < i64::from(size));
}

/// The object that a history begins with.
pub(super) fn new_cluster(size: i32) -> MySQLCluster {
    let spec = MySQLClusterSpec {
        size,
        version: Some(VERSION.into()),
        ..MySQLClusterSpec::default()
    };
    let mut cluster = MySQLCluster::new("orders", spec);
    cluster.metadata.namespace = Some("ns".into());
    cluster.metadata.uid = Some("cluster-1".into());
    cluster.metadata.generation = Some(1);
    cluster.metadata.resource_version = Some("1".into());
    cluster.metadata.annotations = Some(BTreeMap::new());
    cluster
}
