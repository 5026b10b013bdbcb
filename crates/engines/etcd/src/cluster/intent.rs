//! What the user wants, read from the spec once and checked. A spec that cannot be followed is refused here, in words.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use crate::api::etcd_cluster::Bootstrap;
use crate::api::etcd_cluster::{self as api, OnQuorumLoss};
use crate::api::validate::Problem;
use crate::api::{EtcdCluster, EtcdVersion, names};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::manifests;
use super::record::{OldLog, Record};
use super::world::{MemberName, Uid};

/// Annotation of the user on the EtcdCluster: begin with an empty cluster although claims of an earlier one are there.
const IGNORE_OLD_CLAIMS: &str = "stateward.dev/ignore-old-claims";

/// The user's wishes as decisions need them.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// The EtcdCluster without its status, for the manifests.
    pub cluster: Arc<EtcdCluster>,
    /// The image with the `stateward` program, for a member that starts from a backup.
    pub agent_image: String,
    /// Where.
    pub namespace: String,
    /// The cluster's name.
    pub name: String,
    /// The cluster object's UID.
    pub uid: Uid,
    /// The generation of the spec that this was read from.
    pub generation: i64,
    /// The domain that members' names end in, or nothing.
    pub domain: String,
    /// How many voters.
    pub size: usize,
    /// Which etcd.
    pub version: EtcdVersion,
    /// Touch nothing.
    pub paused: bool,
    /// Stop all pods, keep all data.
    pub hibernate: bool,
    /// How the first members come to be.
    pub bootstrap: Bootstrap,
    /// Where data lives.
    pub storage: Storage,
    /// Peers speak TLS.
    pub tls: bool,
    /// Clients speak TLS.
    pub client_tls: bool,
    /// The secret for peers, by the spec or, while TLS is being switched off, by the spec before.
    pub peer_secret: Option<String>,
    /// For how long an updated member must have been ready before the next one is restarted.
    pub min_ready: Duration,
    /// New settings reach a pod only when the user deletes it.
    pub on_delete: bool,
    /// Hash of the wishes that a pod is made from. A pod with another one is restarted, one at a time.
    pub template: String,
    /// Members make a snapshot at once when they start: nothing older is left in their logs.
    pub sweeps: bool,
    /// Hash of the wishes that reach a pod without a restart.
    pub metadata: String,
    /// Hashes of what the services and the budget should be.
    pub services: ServiceHashes,
    /// What may be done when a majority is lost.
    pub recovery: Recovery,
    /// How long a node may be dead before its member is replaced.
    pub replace_after: Duration,
    /// Members that the user declares lost for good, with their data.
    pub confirmed_lost: BTreeSet<MemberName>,
    /// How long old claims are kept after a recovery.
    pub keep_old_claims: Duration,
    /// The EtcdBackup that a recovery shall use, whichever cluster its backups are of.
    pub recovery_backup: Option<String>,
    /// Take a snapshot before a minor upgrade.
    pub backup_first: bool,
    /// Hash of the EtcdBackup that `spec.backup` asks for.
    pub backup: Option<String>,
    /// Claims of members that a restore replaced are kept (`storage.retain: Retain`).
    pub retain_claims: bool,
    /// Begin although claims of an earlier cluster of this name are there.
    pub ignore_old_claims: bool,
    /// Client URLs of a running cluster that is to be taken over instead of founding one.
    pub adopt: Vec<String>,
    /// Its members may leave.
    pub release_adopted: bool,
    /// When a member's free space is given back; `None`: never.
    pub defragmentation: Option<Defragmentation>,
}

/// When a member's free space is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defragmentation {
    /// Only at these times (cron, UTC); `None`: whenever it is worth it.
    pub schedule: Option<String>,
    /// The file must be larger.
    pub above: u64,
    /// At least this share of it must be free.
    pub free_percent: u64,
}

/// How the services should look, as hashes of their making.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceHashes {
    /// Headless service.
    pub peer: String,
    /// Client service.
    pub client: String,
    /// Disruption budget.
    pub budget: String,
}

/// Where data lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// On a claim of this many bytes.
    Durable {
        /// Requested bytes.
        bytes: u64,
    },
    /// In the pod, gone with it.
    Ephemeral,
}

/// What may be done when a majority is lost for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Say so and wait.
    Report,
    /// Go on with the most advanced survivor, after this time.
    FromSurvivor(Duration),
    /// Go on with the latest verified backup, after this time.
    FromBackup(Duration),
}

impl Intent {
    /// Reads the spec, or says what in it cannot be followed. `ephemeral_by_default` is the operator's own default for clusters that say nothing of storage.
    pub fn of(cluster: &EtcdCluster, ephemeral_by_default: bool) -> Result<Self, Problem> {
        if let Some(problem) = cluster.problems().into_iter().next() {
            return Err(problem);
        }
        let spec = &cluster.spec;
        let storage = if cluster.is_ephemeral(ephemeral_by_default) {
            Storage::Ephemeral
        } else {
            let claim = cluster.claim_spec();
            let request = claim
                .resources
                .and_then(|resources| resources.requests)
                .and_then(|mut requests| requests.remove("storage"))
                .unwrap_or_default();
            let bytes = bytes(&request).ok_or_else(|| Problem {
                field: "pod.persistentVolumeClaimSpec.resources.requests.storage".into(),
                message: format!("\"{}\" is not a size: write it as 8Gi or 500Mi", request.0),
            })?;
            Storage::Durable { bytes }
        };
        let recovery = spec.recovery.clone().unwrap_or_default();
        let seconds = |given: Option<i64>, default: i64| {
            Duration::from_secs(u64::try_from(given.unwrap_or(default)).unwrap_or(0))
        };
        let delay = seconds(recovery.delay_seconds, api::Recovery::DEFAULT_DELAY_SECONDS);
        let maintenance = spec
            .maintenance
            .as_ref()
            .and_then(|maintenance| maintenance.defragmentation.clone())
            .unwrap_or_default();
        if let Some(schedule) = &maintenance.schedule {
            stateward_core::cron::Schedule::parse(schedule).map_err(|error| Problem {
                field: "maintenance.defragmentation.schedule".into(),
                message: error.to_string(),
            })?;
        }
        let min_size = maintenance.min_size.as_ref().and_then(bytes).unwrap_or(100 << 20);
        let annotations = cluster.metadata.annotations.as_ref();
        let hash_of = |annotations: Option<&std::collections::BTreeMap<String, String>>| {
            annotations
                .and_then(|all| all.get(manifests::ANNOTATION_METADATA))
                .cloned()
                .unwrap_or_default()
        };
        Ok(Self {
            cluster: Arc::new(EtcdCluster {
                metadata: cluster.metadata.clone(),
                spec: spec.clone(),
                status: None,
            }),
            agent_image: String::new(),
            namespace: cluster.namespace().to_owned(),
            name: cluster.name().to_owned(),
            uid: Uid(cluster.metadata.uid.clone().unwrap_or_default()),
            generation: cluster.metadata.generation.unwrap_or(0),
            size: usize::try_from(spec.size).unwrap_or(0),
            version: cluster.version().map_err(|error| Problem {
                field: "version".into(),
                message: error.to_string(),
            })?,
            paused: spec.paused,
            hibernate: spec.hibernate,
            bootstrap: spec.bootstrap.unwrap_or_default(),
            storage,
            tls: cluster.tls().peers(),
            client_tls: cluster.tls().clients(),
            peer_secret: manifests::tls_secrets(cluster).peer.or_else(|| {
                let recorded = cluster.status.as_ref().and_then(|status| status.tls.as_ref());
                recorded
                    .map(|tls| tls.peer_secret.clone())
                    .filter(|name| !name.is_empty())
            }),
            min_ready: seconds(
                spec.update_strategy
                    .as_ref()
                    .and_then(|strategy| strategy.min_ready_seconds),
                0,
            ),
            on_delete: spec.update_strategy.as_ref().and_then(|strategy| strategy.type_)
                == Some(api::UpdateStrategyType::OnDelete),
            template: template(cluster),
            sweeps: false,
            metadata: stateward_core::manifests::hash(&spec.pod.as_ref().map(|pod| (&pod.labels, &pod.annotations))),
            services: ServiceHashes {
                peer: hash_of(manifests::peer_service(cluster).metadata.annotations.as_ref()),
                client: hash_of(manifests::client_service(cluster).metadata.annotations.as_ref()),
                budget: hash_of(manifests::budget(cluster).metadata.annotations.as_ref()),
            },
            recovery: match recovery.on_quorum_loss.unwrap_or_default() {
                OnQuorumLoss::Report => Recovery::Report,
                OnQuorumLoss::FromSurvivor => Recovery::FromSurvivor(delay),
                OnQuorumLoss::FromBackup => Recovery::FromBackup(delay),
            },
            replace_after: seconds(recovery.node_loss_seconds, api::Recovery::DEFAULT_NODE_LOSS_SECONDS),
            confirmed_lost: annotations
                .and_then(|all| all.get(names::ANNOTATION_CONFIRM_LOST))
                .map(|all| {
                    let names = all.split(',').map(str::trim).filter(|name| !name.is_empty());
                    names.map(MemberName::from).collect()
                })
                .unwrap_or_default(),
            keep_old_claims: seconds(
                recovery.keep_old_claims_seconds,
                api::Recovery::DEFAULT_KEEP_OLD_CLAIMS_SECONDS,
            ),
            recovery_backup: recovery.backup_ref.as_ref().map(|backup| backup.name.clone()),
            backup_first: spec.backup.is_some()
                && !spec
                    .update_strategy
                    .as_ref()
                    .is_some_and(|strategy| strategy.skip_snapshot),
            backup: manifests::kept_backup(cluster).map(|backup| hash_of(backup.metadata.annotations.as_ref())),
            retain_claims: cluster.retain() == api::Retain::Retain,
            ignore_old_claims: annotations
                .is_some_and(|all| all.get(IGNORE_OLD_CLAIMS).is_some_and(|value| value == "true")),
            adopt: annotations
                .and_then(|all| all.get(names::ANNOTATION_ADOPT))
                .map(|urls| {
                    urls.split(',')
                        .map(|url| url.trim().to_owned())
                        .filter(|url| !url.is_empty())
                        .collect()
                })
                .unwrap_or_default(),
            release_adopted: annotations
                .is_some_and(|all| all.get(names::ANNOTATION_RELEASE).is_some_and(|value| value == "true")),
            defragmentation: (!maintenance.disabled).then(|| Defragmentation {
                schedule: maintenance.schedule.clone(),
                above: min_size,
                free_percent: maintenance
                    .min_free_percent
                    .and_then(|percent| u64::try_from(percent).ok())
                    .unwrap_or(50),
            }),
            domain: cluster.cluster_domain().trim_matches('.').to_owned(),
        })
    }

    /// The same, at the step that the record tells of: while the log is swept pods are made for that.
    pub fn at(mut self, record: &Record) -> Self {
        if record.old_log == Some(OldLog::Sweeping) && !self.sweeps {
            self.sweeps = true;
            self.template.push_str("-sweep");
        }
        self
    }

    /// Data outlives pods.
    pub fn is_durable(&self) -> bool {
        matches!(self.storage, Storage::Durable { .. })
    }

    /// The host name of a member: the name every URL and certificate carries.
    pub fn host(&self, member: &MemberName) -> String {
        crate::api::names::member_host(&member.0, &self.name, &self.namespace, &self.domain)
    }

    /// Where peers reach a member.
    pub fn peer_url(&self, member: &MemberName, tls: bool) -> String {
        format!("{}://{}:2380", if tls { "https" } else { "http" }, self.host(member))
    }

    /// The member that a peer URL belongs to, if it is one of this cluster's.
    pub fn member_of_url(&self, url: &str) -> Option<MemberName> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
        let host = rest.strip_suffix(":2380")?;
        let (name, domain) = host.split_once('.')?;
        let ours = format!("{}.{}.svc", self.name, self.namespace);
        (domain == ours || domain.strip_prefix(&ours).is_some_and(|tail| tail.starts_with('.')))
            .then(|| MemberName(name.to_owned()))
    }
}

/// The hash of what a pod is made from and needs a restart to change. Only the user's wishes count: a new Stateward that
/// builds pods differently restarts nothing (rule 6). The version is compared by itself.
fn template(cluster: &EtcdCluster) -> String {
    let spec = &cluster.spec;
    let mut pod = spec.pod.clone().unwrap_or_default();
    pod.labels.clear();
    pod.annotations.clear();
    pod.persistent_volume_claim_spec = None;
    pod.busybox_image = None;
    pod.dns_timeout_in_second = None;
    let maintenance = spec
        .maintenance
        .as_ref()
        .map(|maintenance| (&maintenance.quota, &maintenance.auto_compaction));
    let medium = spec.storage.as_ref().and_then(|storage| storage.medium);
    let desired = (
        cluster.repository(),
        &pod,
        &tls_of_pods(cluster),
        maintenance,
        medium,
        &spec.topology_spread_constraints,
        &spec.priority_class_name,
        &spec.etcd_options,
        &spec.metrics,
    );
    stateward_core::manifests::hash(&desired)
}

/// What of `spec.TLS` makes pods different: with certificates that are handed out by Stateward they are all alike, and
/// whom they trust is compared by itself.
fn tls_of_pods(cluster: &EtcdCluster) -> Option<api::TlsPolicy> {
    match cluster.tls() {
        api::Tls::Copied(_) | api::Tls::Auto(_) | api::Tls::CertManager(_) => Some(api::TlsPolicy {
            auto: Some(api::AutoTls::default()),
            ..api::TlsPolicy::default()
        }),
        api::Tls::Off | api::Tls::Static(_) => cluster.spec.tls.clone(),
    }
}

/// A size in bytes.
pub(super) fn bytes(quantity: &Quantity) -> Option<u64> {
    stateward_core::quantity::bytes(quantity).and_then(|bytes| u64::try_from(bytes).ok())
}
