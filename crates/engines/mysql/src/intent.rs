//! What the user wants, read from the spec once, checked and with its defaults. A spec that cannot be followed is rejected here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use stateward_core::{Uid, quantity};

use crate::api::config::normalized;
use crate::api::validate::Problem;
use crate::api::{self, Acks, CloneFrom, DEFAULT_VERSION, Errant, MySQLCluster, MySQLVersion, PodPolicy, WhenNoAcker};
use crate::memory::Memory;
use crate::names;
use crate::world::Ordinal;

/// The size of a claim when the spec names none: 10Gi.
const DEFAULT_BYTES: u64 = 10 << 30;

/// The desired state.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// The namespace.
    pub namespace: String,
    /// The cluster's name.
    pub name: String,
    /// The UID of the MySQLCluster.
    pub uid: Uid,
    /// The generation of the spec that this was read from.
    pub generation: i64,
    /// How many members.
    pub size: u32,
    /// The version that pods are made with: the one that was accepted last.
    pub version: MySQLVersion,
    /// The version that the user wants.
    pub wanted: MySQLVersion,
    /// The repository of the image, without a tag.
    pub repository: String,
    /// Change nothing.
    pub paused: bool,
    /// Stop all pods, keep all data.
    pub hibernate: bool,
    /// Where members keep their data.
    pub storage: Storage,
    /// The server ID of a member is this plus its ordinal.
    pub server_id_base: u32,
    /// System variables by role.
    pub config: Config,
    /// How many acknowledgements each write waits for.
    pub acks: u32,
    /// What a primary does that too few replicas acknowledge.
    pub when_no_acker: WhenNoAcker,
    /// Where a new replica gets its data from.
    pub clone_from: CloneFrom,
    /// For how long a primary whose container runs may not reply before it is replaced.
    pub failover_after: Duration,
    /// What is done with a former primary that has transactions which no acknowledger had.
    pub errant: Errant,
    /// The member that is the primary whenever it is healthy and has caught up.
    pub prefer: Option<Ordinal>,
    /// A replica that is further behind leaves the Service for reads, in seconds.
    pub max_lag: u64,
    /// Members with a lower ordinal keep their pods as they are.
    pub partition: u32,
    /// A backup comes before an upgrade.
    pub backup_first: bool,
    /// TLS.
    pub tls: Tls,
    /// The application's database.
    pub database: Database,
    /// A Secret of the user with the password of the application's account.
    pub app_secret: Option<String>,
    /// How pods look.
    pub pod: PodPolicy,
    /// What the user asks for by annotations.
    pub requests: Requests,
}

/// Where members keep their data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Storage {
    /// The size of every claim in bytes.
    pub bytes: u64,
    /// The storage class; `None` is the default one.
    pub class: Option<String>,
    /// Claims that are not needed any more stay.
    pub retain: bool,
}

/// System variables with normal names (lower case, `_`) and values as in my.cnf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Config {
    /// For all members.
    pub all: BTreeMap<String, String>,
    /// For the primary, over those for all.
    pub primary: BTreeMap<String, String>,
    /// For replicas, over those for all.
    pub replica: BTreeMap<String, String>,
}

/// TLS between members and for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Tls {
    /// None.
    Off,
    /// Stateward issues and rotates the certificates.
    Auto(AutoTls),
}

/// Certificates that Stateward issues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AutoTls {
    /// Clients without TLS are rejected.
    pub require_clients: bool,
    /// A Secret with a CA of the user.
    pub ca_secret: Option<String>,
    /// For how many days a certificate is valid.
    pub validity_days: u32,
    /// Further DNS names.
    pub dns_names: Vec<String>,
    /// IP addresses.
    pub ip_addresses: Vec<String>,
}

/// The application's database and account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Database {
    /// The database.
    pub name: String,
    /// The account with all permissions on it.
    pub user: String,
}

/// What the user asks for by annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Passwords are rotated when this changes; empty where it was never set.
    pub rotate: String,
    /// The own transactions of these members may be discarded.
    pub discard: BTreeSet<Ordinal>,
    /// These members are gone for good, with their data.
    pub confirm_lost: BTreeSet<Ordinal>,
    /// The pod that shall become the primary, as written.
    pub switchover_to: Option<String>,
    /// Claims of an earlier cluster of this name may be deleted.
    pub ignore_old_claims: bool,
    /// The StatefulSet to adopt.
    pub adopt: Option<String>,
}

impl Intent {
    /// Reads the spec, or says what in it cannot be followed.
    pub fn of(cluster: &MySQLCluster, memory: &Memory) -> Result<Self, Problem> {
        if let Some(problem) = cluster.problems().into_iter().next() {
            return Err(problem);
        }
        let spec = cluster.spec.clone();
        let size = u32::try_from(spec.size).unwrap_or(1);
        let accepted = memory.target.or(memory.current);
        let wanted = match &spec.version {
            Some(text) => MySQLVersion::supported(text),
            None => accepted.map_or_else(|| MySQLVersion::supported(DEFAULT_VERSION), Ok),
        };
        let wanted = wanted.map_err(|error| Problem {
            field: "version".into(),
            message: error.to_string(),
        })?;
        let storage = spec.storage.unwrap_or_default();
        let config = spec.config.unwrap_or_default();
        let durability = spec.durability.unwrap_or_default();
        let failover = spec.failover.unwrap_or_default();
        let update = spec.update.unwrap_or_default();
        let database = spec.database.unwrap_or_default();
        Ok(Self {
            namespace: cluster.namespace().to_owned(),
            name: cluster.name().to_owned(),
            uid: Uid::of(&cluster.metadata),
            generation: cluster.metadata.generation.unwrap_or(0),
            size,
            version: accepted.unwrap_or(wanted),
            wanted,
            repository: cluster.repository().to_owned(),
            paused: spec.paused,
            hibernate: spec.hibernate,
            storage: Storage {
                bytes: storage
                    .size
                    .as_ref()
                    .and_then(quantity::unsigned_bytes)
                    .unwrap_or(DEFAULT_BYTES),
                class: storage.storage_class_name,
                retain: storage.retain.unwrap_or_default() == api::Retain::Retain,
            },
            server_id_base: spec.server_id_base.map_or(100, |base| unsigned(base, 100)),
            config: Config {
                all: normalized(&config.all),
                primary: normalized(&config.primary),
                replica: normalized(&config.replica),
            },
            acks: match durability.acks {
                Some(Acks::Number(acks)) => unsigned(acks, size / 2),
                Some(Acks::Word(_)) | None => size / 2,
            },
            when_no_acker: durability.when_no_acker.unwrap_or_default(),
            clone_from: spec.clone.and_then(|clone| clone.from).unwrap_or_default(),
            failover_after: Duration::from_secs(failover.after_seconds.map_or(2, |after| unsigned(after, 2).into())),
            errant: failover.errant.unwrap_or_default(),
            prefer: spec
                .primary
                .and_then(|primary| primary.prefer)
                .map(|prefer| Ordinal(unsigned(prefer, 0))),
            max_lag: spec
                .reads
                .and_then(|reads| reads.max_lag_seconds)
                .map_or(10, |lag| unsigned(lag, 10).into()),
            partition: update.partition.map_or(0, |partition| unsigned(partition, 0)),
            // There is no spec.backup yet that names a store.
            backup_first: false,
            tls: tls(spec.tls.unwrap_or_default()),
            database: Database {
                name: database.name.unwrap_or_else(|| "app".into()),
                user: database.user.unwrap_or_else(|| "app".into()),
            },
            app_secret: spec.auth.and_then(|auth| auth.app_secret),
            pod: spec.pod.unwrap_or_default(),
            requests: requests(cluster),
        })
    }

    /// The host name of a member: what certificates and replication channels name.
    pub fn host(&self, member: Ordinal) -> String {
        names::host(&self.name, &self.namespace, member)
    }

    /// The pod of a member.
    pub fn pod_name(&self, member: Ordinal) -> String {
        names::pod(&self.name, member)
    }

    /// The server ID of a member.
    pub fn server_id(&self, member: Ordinal) -> u32 {
        self.server_id_base.saturating_add(member.0)
    }

    /// The members that the cluster shall have.
    pub fn members(&self) -> impl Iterator<Item = Ordinal> + use<> {
        (0..self.size).map(Ordinal)
    }
}

fn unsigned(number: i64, default: u32) -> u32 {
    u32::try_from(number).unwrap_or(default)
}

fn tls(policy: api::TlsPolicy) -> Tls {
    if policy.disabled {
        return Tls::Off;
    }
    let auto = policy.auto.unwrap_or_default();
    Tls::Auto(AutoTls {
        require_clients: policy.require_clients,
        ca_secret: auto.ca_secret,
        validity_days: auto.validity_days.map_or(90, |days| unsigned(days, 90)),
        dns_names: auto.dns_names,
        ip_addresses: auto.ip_addresses,
    })
}

fn requests(cluster: &MySQLCluster) -> Requests {
    let text = |key| cluster.annotation(key).map(str::to_owned);
    let members = |key| {
        let names = cluster.annotation(key).unwrap_or_default().split(',');
        names
            .filter_map(|pod| names::ordinal(cluster.name(), pod.trim()))
            .collect()
    };
    Requests {
        rotate: text(names::ANNOTATION_ROTATE).unwrap_or_default(),
        discard: members(names::ANNOTATION_DISCARD),
        confirm_lost: members(names::ANNOTATION_CONFIRM_LOST),
        switchover_to: text(names::ANNOTATION_SWITCHOVER),
        ignore_old_claims: cluster.annotation(names::ANNOTATION_IGNORE_OLD_CLAIMS) == Some("true"),
        adopt: text(names::ANNOTATION_ADOPT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(spec: serde_json::Value, annotations: serde_json::Value) -> Intent {
        let object = serde_json::json!({"metadata": {"name": "orders", "namespace": "ns", "annotations": annotations},
            "spec": spec});
        let cluster: MySQLCluster = serde_json::from_value(object).expect("a cluster");
        Intent::of(&cluster, &Memory::default()).expect("a good spec")
    }

    #[test]
    fn acks_are_half_of_the_size_unless_said_otherwise() {
        for (spec, acks) in [
            (serde_json::json!({"size": 1}), 0),
            (serde_json::json!({"size": 2}), 1),
            (serde_json::json!({"size": 3}), 1),
            (serde_json::json!({"size": 5}), 2),
            (serde_json::json!({"size": 3, "durability": {"acks": 2}}), 2),
            (serde_json::json!({"size": 3, "durability": {"acks": 0}}), 0),
        ] {
            assert_eq!(intent(spec, serde_json::json!({})).acks, acks);
        }
    }

    #[test]
    fn members_are_named_by_their_pods_in_annotations() {
        let asked = intent(
            serde_json::json!({"size": 3}),
            serde_json::json!({"stateward.dev/discard-errant": "orders-0, orders-2,others-1"}),
        );
        assert_eq!(asked.requests.discard, BTreeSet::from([Ordinal(0), Ordinal(2)]));
        assert_eq!(asked.host(Ordinal(1)), "orders-1.orders.ns.svc");
    }

    #[test]
    fn pods_are_made_with_the_version_that_was_accepted() {
        let object = serde_json::json!({"metadata": {"name": "orders"}, "spec": {"size": 1, "version": "9.7.9"}});
        let cluster: MySQLCluster = serde_json::from_value(object).expect("a cluster");
        let memory = Memory {
            current: "9.7.4".parse().ok(),
            ..Memory::default()
        };
        let intent = Intent::of(&cluster, &memory).expect("a good spec");
        assert_eq!(
            (intent.version.to_string(), intent.wanted.to_string()),
            ("9.7.4".into(), "9.7.9".into())
        );
    }
}
