//! A member's pod. It meets the "restricted" pod security standard; its name, hostname and subdomain give the member the
//! one address that every URL and certificate carries.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::etcd_cluster::{Medium, PodPolicy, Tls};
use crate::api::{EtcdCluster, EtcdVersion, names};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, ContainerPort, DownwardAPIProjection, DownwardAPIVolumeFile,
    EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction, KeyToPath, ObjectFieldSelector,
    PersistentVolumeClaimVolumeSource, Pod, PodAffinityTerm, PodAntiAffinity, PodSpec, Probe, ProjectedVolumeSource,
    SecretProjection, SecretVolumeSource, SecurityContext, TCPSocketAction, TopologySpreadConstraint, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::flags::{CLIENT_TLS, PEER_TLS, SERVER_TLS, VOLUME, flags, has_metrics_port};
use super::launch;
use crate::cluster::{Ca, Intent, Launch, MemberName, TlsStage, Uid};

/// Whom a pod that is made now trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustFiles {
    /// The authorities.
    pub cas: BTreeSet<Ca>,
    /// Their certificates for peers; `None`: they are in the Secret, which the user keeps.
    pub peer: Option<String>,
    /// Their certificates for clients.
    pub client: Option<String>,
}

/// The pod of a member.
pub fn pod(
    intent: &Intent,
    member: &MemberName,
    start: &Launch,
    version: &EtcdVersion,
    tls: TlsStage,
    trust: Option<&TrustFiles>,
) -> Pod {
    let cluster = &*intent.cluster;
    let policy = cluster.spec.pod.clone().unwrap_or_default();
    let mut metadata = super::metadata(cluster, member.0.clone());
    metadata.labels = Some(labels(cluster, &policy, member));
    let mut annotations = annotations(intent, &policy);
    annotations.extend(launch::annotations(intent, member, start, tls == TlsStage::On));
    annotations.insert(names::ANNOTATION_ETCD_VERSION.into(), version.to_string());
    annotations.insert(names::ANNOTATION_POD_HASH.into(), intent.template.clone());
    annotations.insert(names::ANNOTATION_CLUSTER_UID.into(), intent.uid.0.clone());
    annotations.insert(launch::TLS.into(), tls.as_str().into());
    if let Some(trust) = trust {
        let names = trust.cas.iter().cloned().collect::<Vec<_>>().join(",");
        annotations.insert(launch::TRUSTS.into(), names);
        annotations.extend(trust.peer.clone().map(|pem| (launch::PEER_CA.to_owned(), pem)));
        annotations.extend(trust.client.clone().map(|pem| (launch::CLIENT_CA.to_owned(), pem)));
    }
    metadata.annotations = Some(annotations);
    let secrets = secrets(cluster, intent, tls);
    let mut volumes = vec![data_volume(cluster, intent, member)];
    let mut mounts = vec![VolumeMount {
        name: "etcd-data".into(),
        mount_path: VOLUME.into(),
        ..VolumeMount::default()
    }];
    for (name, secret, path) in &secrets {
        let (peer, client) = (
            trust.is_some_and(|trust| trust.peer.is_some()),
            trust.is_some_and(|trust| trust.client.is_some()),
        );
        volumes.push(match *path {
            PEER_TLS if peer => trusting(name, secret, "peer", launch::PEER_CA),
            SERVER_TLS if client => trusting(name, secret, "server", launch::CLIENT_CA),
            _ => Volume {
                name: (*name).into(),
                secret: Some(SecretVolumeSource {
                    secret_name: Some(secret.clone()),
                    ..SecretVolumeSource::default()
                }),
                ..Volume::default()
            },
        });
        mounts.push(VolumeMount {
            name: (*name).into(),
            mount_path: (*path).into(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
    let mut args = flags(cluster, member, version, tls);
    if intent.sweeps {
        // etcd makes a snapshot when more entries than this were applied since the last one.
        args.push("--snapshot-count=1".into());
    }
    let container = Container {
        name: names::CONTAINER.into(),
        image: Some(cluster.image(version)),
        command: Some(vec!["/usr/local/bin/etcd".into()]),
        args: Some(args),
        env: Some(environment(cluster, &policy, member)),
        ports: Some(ports(cluster, version)),
        resources: policy.resources.clone(),
        volume_mounts: Some(mounts),
        startup_probe: Some(Probe {
            period_seconds: Some(1),
            timeout_seconds: Some(5),
            failure_threshold: Some(1800),
            ..alive(cluster, version)
        }),
        liveness_probe: Some(Probe {
            period_seconds: Some(10),
            timeout_seconds: Some(10),
            failure_threshold: Some(6),
            ..alive(cluster, version)
        }),
        readiness_probe: Some(Probe {
            period_seconds: Some(2),
            timeout_seconds: Some(5),
            failure_threshold: Some(3),
            ..ready(cluster, version)
        }),
        // What etcd said last is the evidence that decisions about its data rest on.
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".into()]),
                add: None,
            }),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let mut spec = PodSpec {
        hostname: Some(member.0.clone()),
        subdomain: Some(names::peer_service(cluster.name())),
        containers: vec![container],
        volumes: Some(volumes),
        restart_policy: Some("Always".into()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        service_account_name: policy.service_account_name.clone(),
        image_pull_secrets: (!policy.image_pull_secrets.is_empty()).then(|| policy.image_pull_secrets.clone()),
        priority_class_name: cluster.spec.priority_class_name.clone(),
        node_selector: (!policy.node_selector.is_empty()).then(|| policy.node_selector.clone()),
        tolerations: (!policy.tolerations.is_empty()).then(|| policy.tolerations.clone()),
        affinity: affinity(cluster, &policy),
        topology_spread_constraints: Some(spread(cluster)),
        security_context: Some(
            policy
                .security_context
                .clone()
                .unwrap_or_else(stateward_core::manifests::restricted),
        ),
        ..PodSpec::default()
    };
    if let Launch::Restore { source, .. } = start {
        super::restore::add(&mut spec, cluster, source, version, &intent.agent_image);
    }
    Pod {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

/// The labels and annotations that a running pod should have. How etcd starts in it is not among them.
pub fn pod_metadata(intent: &Intent, member: &MemberName, uid: &Uid) -> ObjectMeta {
    let cluster = &intent.cluster;
    let policy = cluster.spec.pod.clone().unwrap_or_default();
    ObjectMeta {
        name: Some(member.0.clone()),
        namespace: Some(intent.namespace.clone()),
        uid: Some(uid.0.clone()),
        labels: Some(labels(cluster, &policy, member)),
        annotations: Some(annotations(intent, &policy)),
        ..ObjectMeta::default()
    }
}

/// An annotation of a pod that only its creation and sealing set.
pub fn stays_on_pod(annotation: &str) -> bool {
    annotation.starts_with(names::RESERVED_PREFIX) || annotation == names::ANNOTATION_ETCD_VERSION
}

/// The user's labels, and ours, which win.
fn labels(cluster: &EtcdCluster, policy: &PodPolicy, member: &MemberName) -> BTreeMap<String, String> {
    policy
        .labels
        .clone()
        .into_iter()
        .chain(names::member_labels(cluster.name(), &member.0))
        .collect()
}

fn annotations(intent: &Intent, policy: &PodPolicy) -> BTreeMap<String, String> {
    let keys = policy
        .labels
        .keys()
        .map(|key| format!("l:{key}"))
        .chain(policy.annotations.keys().map(|key| format!("a:{key}")));
    let keys = keys.collect::<Vec<_>>().join(",");
    let own = [
        (super::ANNOTATION_METADATA.to_owned(), intent.metadata.clone()),
        (super::ANNOTATION_USER_KEYS.to_owned(), keys),
    ];
    policy
        .annotations
        .clone()
        .into_iter()
        .filter(|(key, _)| !key.starts_with(names::RESERVED_PREFIX))
        .chain(own)
        .collect()
}

fn data_volume(cluster: &EtcdCluster, intent: &Intent, member: &MemberName) -> Volume {
    let name = "etcd-data".to_owned();
    if intent.is_durable() {
        let claim = PersistentVolumeClaimVolumeSource {
            claim_name: names::claim(&member.0),
            read_only: None,
        };
        return Volume {
            name,
            persistent_volume_claim: Some(claim),
            ..Volume::default()
        };
    }
    let storage = cluster.spec.storage.clone().unwrap_or_default();
    let medium = (storage.medium == Some(Medium::Memory)).then(|| "Memory".to_owned());
    Volume {
        name,
        empty_dir: Some(EmptyDirVolumeSource {
            medium,
            size_limit: storage.size,
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Volume name, secret and path of each secret that is mounted.
fn secrets(cluster: &EtcdCluster, intent: &Intent, tls: TlsStage) -> Vec<(&'static str, String, &'static str)> {
    let names = tls_secrets(cluster);
    let mut all = Vec::new();
    if let (Some(peer), true) = (intent.peer_secret.clone(), tls != TlsStage::Off) {
        all.push(("member-peer-tls", peer, PEER_TLS));
    }
    if let Some(server) = names.server {
        all.push(("member-server-tls", server, SERVER_TLS));
    }
    if let Some(client) = names.client {
        all.push(("etcd-client-tls", client, CLIENT_TLS));
    }
    all
}

/// Certificate and key from a Secret, which a kubelet brings up to date by and by, and the trusted authorities from the
/// pod's own annotation: they are those that the pod was made with, whatever a kubelet has of the Secret at that moment.
fn trusting(name: &str, secret: &str, file: &str, annotation: &str) -> Volume {
    let item = |key: String| KeyToPath {
        path: key.clone(),
        key,
        ..KeyToPath::default()
    };
    let certificate = VolumeProjection {
        secret: Some(SecretProjection {
            name: secret.to_owned(),
            items: Some(vec![item(format!("{file}.crt")), item(format!("{file}.key"))]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let cas = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: format!("{file}-ca.crt"),
                field_ref: Some(ObjectFieldSelector {
                    api_version: None,
                    field_path: format!("metadata.annotations['{annotation}']"),
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(vec![certificate, cas]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The names of the secrets that a cluster's TLS uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSecrets {
    /// Between members.
    pub peer: Option<String>,
    /// For clients.
    pub server: Option<String>,
    /// The operator's own.
    pub client: Option<String>,
}

/// The secrets that members mount: the user's own, or those that Stateward writes.
pub fn tls_secrets(cluster: &EtcdCluster) -> TlsSecrets {
    let name = cluster.name();
    match cluster.tls() {
        Tls::Off => TlsSecrets::default(),
        Tls::Static(secrets) => TlsSecrets {
            peer: secrets.peer_secret().map(str::to_owned),
            server: secrets.server_secret().map(str::to_owned),
            client: secrets.operator_secret.clone(),
        },
        Tls::Copied(_) | Tls::Auto(_) | Tls::CertManager(_) => {
            let [peer, server, client] = names::tls_secrets(name).map(Some);
            TlsSecrets { peer, server, client }
        }
    }
}

fn environment(cluster: &EtcdCluster, policy: &PodPolicy, member: &MemberName) -> Vec<EnvVar> {
    let from = |name: &str, annotation: &str| EnvVar {
        name: name.into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: format!("metadata.annotations['{annotation}']"),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let fixed = |name: &str, value: String| EnvVar {
        name: name.into(),
        value: Some(value),
        ..EnvVar::default()
    };
    let mut own = vec![
        from("ETCD_INITIAL_CLUSTER_STATE", launch::STATE),
        from("ETCD_INITIAL_CLUSTER", launch::MEMBERS),
        from("ETCD_INITIAL_CLUSTER_TOKEN", launch::TOKEN),
        from("ETCD_FORCE_NEW_CLUSTER", launch::FORCE_NEW),
        // So that `kubectl exec <pod> -- etcdctl …` works as it is.
        fixed("ETCDCTL_API", "3".into()),
        fixed(
            "ETCDCTL_ENDPOINTS",
            names::url(
                cluster.tls().clients(),
                &cluster.member_host(&member.0),
                names::CLIENT_PORT,
            ),
        ),
    ];
    if cluster.tls().clients() {
        own.push(fixed("ETCDCTL_CACERT", format!("{CLIENT_TLS}/etcd-client-ca.crt")));
        own.push(fixed("ETCDCTL_CERT", format!("{CLIENT_TLS}/etcd-client.crt")));
        own.push(fixed("ETCDCTL_KEY", format!("{CLIENT_TLS}/etcd-client.key")));
    }
    let user = policy
        .etcd_env
        .iter()
        .filter(|variable| own.iter().all(|ours| ours.name != variable.name))
        .cloned();
    let user: Vec<EnvVar> = user.collect();
    user.into_iter().chain(own).collect()
}

fn metrics_port(cluster: &EtcdCluster) -> i32 {
    cluster
        .spec
        .metrics
        .as_ref()
        .and_then(|metrics| metrics.port)
        .unwrap_or(names::METRICS_PORT)
}

fn ports(cluster: &EtcdCluster, version: &EtcdVersion) -> Vec<ContainerPort> {
    let port = |name: &str, number| ContainerPort {
        name: Some(name.into()),
        container_port: number,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    let mut ports = vec![port("client", names::CLIENT_PORT), port("peer", names::PEER_PORT)];
    if has_metrics_port(version) {
        ports.push(port("metrics", metrics_port(cluster)));
    }
    ports
}

/// The process answers. Not the quorum: a member that only waits for the others must not be killed for it.
fn alive(cluster: &EtcdCluster, version: &EtcdVersion) -> Probe {
    if version.has_livez() {
        http("/livez", metrics_port(cluster))
    } else {
        Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::Int(names::CLIENT_PORT),
                host: None,
            }),
            ..Probe::default()
        }
    }
}

/// Clients are served.
fn ready(cluster: &EtcdCluster, version: &EtcdVersion) -> Probe {
    if version.has_livez() {
        http("/readyz", metrics_port(cluster))
    } else if has_metrics_port(version) {
        http("/health", metrics_port(cluster))
    } else if !cluster.tls().clients() {
        http("/health", names::CLIENT_PORT)
    } else {
        alive(cluster, version)
    }
}

fn http(path: &str, port: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(port),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    }
}

fn affinity(cluster: &EtcdCluster, policy: &PodPolicy) -> Option<Affinity> {
    if policy.affinity.is_some() || !policy.anti_affinity {
        return policy.affinity.clone();
    }
    let apart = PodAffinityTerm {
        label_selector: Some(ours(cluster)),
        topology_key: "kubernetes.io/hostname".into(),
        ..PodAffinityTerm::default()
    };
    Some(Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![apart]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    })
}

/// Over nodes and zones as far as possible, where the user says nothing.
fn spread(cluster: &EtcdCluster) -> Vec<TopologySpreadConstraint> {
    if !cluster.spec.topology_spread_constraints.is_empty() {
        return cluster.spec.topology_spread_constraints.clone();
    }
    ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        .map(|key| TopologySpreadConstraint {
            max_skew: 1,
            topology_key: key.into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Some(ours(cluster)),
            ..TopologySpreadConstraint::default()
        })
        .into()
}

fn ours(cluster: &EtcdCluster) -> LabelSelector {
    LabelSelector {
        match_labels: Some(names::selector(cluster.name())),
        ..LabelSelector::default()
    }
}
