//! A member's pod. It meets the "restricted" pod security standard, and each container sees only the Secrets that it needs.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction,
    KeyToPath, ObjectFieldSelector, PodSpec, Probe, ResourceRequirements, SecretVolumeSource, TopologySpreadConstraint,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use stateward_core::agent::{mount, no_privileges, small};
use stateward_core::manifests::restricted;

use super::config::read_at_start;
use super::set::CLAIM;
use crate::agent::{READY, TOKEN_KEY};
use crate::intent::{Intent, Tls};
use crate::names::{ACCOUNT_CLONE, ACCOUNT_OPERATOR, ADMIN_PORT, AGENT, AGENT_PORT, CONTAINER, INIT, PORT};
use crate::{layout, names};

/// Volumes.
const RUN: &str = "run";
const TEMPORARY: &str = "tmp";
const TOOLS: &str = "tools";
const CONFIG: &str = "config";
const CERTIFICATES: &str = "tls";
const ROOT: &str = "root";
const INIT_ACCOUNTS: &str = "init-accounts";
const MYSQLD_ACCOUNT: &str = "mysqld-account";
const AGENT_TOKEN: &str = "agent-token";

/// Time for a switchover, and for a large buffer pool to be written back.
const GRACE_SECONDS: i64 = 120;

/// The specification of every pod. Only its name tells one from another.
pub(super) fn spec(intent: &Intent, agent_image: &str) -> PodSpec {
    let policy = &intent.pod;
    let list = |list: &Vec<_>| (!list.is_empty()).then(|| list.clone());
    PodSpec {
        init_containers: Some(vec![install(agent_image), init(intent)]),
        containers: vec![mysqld(intent), agent(intent)],
        volumes: Some(volumes(intent)),
        restart_policy: Some("Always".into()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        service_account_name: policy.service_account_name.clone(),
        image_pull_secrets: (!policy.image_pull_secrets.is_empty()).then(|| policy.image_pull_secrets.clone()),
        priority_class_name: policy.priority_class_name.clone(),
        node_selector: (!policy.node_selector.is_empty()).then(|| policy.node_selector.clone()),
        tolerations: list(&policy.tolerations),
        affinity: policy.affinity.clone(),
        topology_spread_constraints: Some(spread(intent)),
        security_context: Some(policy.security_context.clone().unwrap_or_else(restricted)),
        ..PodSpec::default()
    }
}

/// MySQL's image has no `stateward`: the program is copied in.
fn install(agent_image: &str) -> Container {
    Container {
        name: "install".into(),
        image: Some(agent_image.to_owned()),
        image_pull_policy: Some("IfNotPresent".into()),
        args: Some(["agent", "install", layout::TOOLS].map(str::to_owned).into()),
        resources: Some(small()),
        volume_mounts: Some(vec![mount(TOOLS, layout::TOOLS, false)]),
        security_context: Some(no_privileges()),
        ..Container::default()
    }
}

/// What all containers with MySQL's programs share.
fn container(intent: &Intent, name: &str, verb: &str, mounts: Vec<VolumeMount>) -> Container {
    let common = [
        mount(CLAIM, layout::VOLUME, false),
        mount(RUN, layout::RUN, false),
        mount(TEMPORARY, layout::TEMPORARY, false),
        mount(TOOLS, layout::TOOLS, true),
    ];
    Container {
        name: name.into(),
        image: Some(format!("{}:{}", intent.repository, intent.version)),
        command: Some(vec![format!("{}/stateward", layout::TOOLS)]),
        args: Some(vec!["agent".into(), verb.into()]),
        volume_mounts: Some(common.into_iter().chain(mounts).collect()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        security_context: Some(no_privileges()),
        ..Container::default()
    }
}

fn init(intent: &Intent) -> Container {
    let mut mounts = vec![
        mount(ROOT, layout::ROOT, true),
        mount(INIT_ACCOUNTS, layout::INTERNAL, true),
    ];
    mounts.extend(certificates(intent));
    Container {
        env: Some(vec![fixed(layout::ENV_STATIC, read_at_start(intent))]),
        resources: intent.pod.resources.clone(),
        ..container(intent, INIT, "mysql-init", mounts)
    }
}

fn mysqld(intent: &Intent) -> Container {
    let mut mounts = vec![
        mount(CONFIG, layout::CONFIG, true),
        mount(MYSQLD_ACCOUNT, layout::INTERNAL, true),
    ];
    mounts.extend(certificates(intent));
    Container {
        env: Some(vec![
            field(layout::ENV_POD, "metadata.name"),
            field(layout::ENV_ADDRESS, "status.podIP"),
            fixed(layout::ENV_DOMAIN, format!("{}.{}.svc", intent.name, intent.namespace)),
            fixed(layout::ENV_SERVER_ID_BASE, intent.server_id_base.to_string()),
            fixed(layout::ENV_STATIC, read_at_start(intent)),
            // So that `kubectl exec <pod> -- mysql` works as it is.
            fixed("MYSQL_UNIX_PORT", layout::SOCKET.into()),
        ]),
        ports: Some(vec![port("mysql", PORT), port("admin", ADMIN_PORT)]),
        resources: intent.pod.resources.clone(),
        // No liveness probe: recovery may take long, and a server that hangs is the operator's to replace.
        readiness_probe: Some(ready(intent)),
        ..container(intent, CONTAINER, "mysql-run", mounts)
    }
}

fn agent(intent: &Intent) -> Container {
    let mut mounts = vec![mount(AGENT_TOKEN, layout::INTERNAL, true)];
    mounts.extend(certificates(intent));
    Container {
        ports: Some(vec![port("agent", AGENT_PORT)]),
        // mysqlbinlog holds a whole event in memory.
        resources: Some(ResourceRequirements {
            limits: None,
            ..small()
        }),
        ..container(intent, AGENT, "mysql-serve", mounts)
    }
}

fn certificates(intent: &Intent) -> Option<VolumeMount> {
    matches!(intent.tls, Tls::Auto(_)).then(|| mount(CERTIFICATES, layout::TLS, true))
}

/// mysqld replies on its socket. The agent is asked, as it costs less than a program in the container.
fn ready(intent: &Intent) -> Probe {
    let scheme = match intent.tls {
        Tls::Off => "HTTP",
        Tls::Auto(_) => "HTTPS",
    };
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(READY.into()),
            port: IntOrString::Int(AGENT_PORT),
            scheme: Some(scheme.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(1),
        timeout_seconds: Some(3),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

fn volumes(intent: &Intent) -> Vec<Volume> {
    let internal = names::internal_secret(&intent.name);
    let mut volumes = vec![
        empty(RUN, true),
        empty(TEMPORARY, false),
        empty(TOOLS, false),
        Volume {
            name: CONFIG.into(),
            config_map: Some(ConfigMapVolumeSource {
                name: names::config_map(&intent.name),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        secret(ROOT, names::root_secret(&intent.name), &[layout::PASSWORD_KEY]),
        secret(INIT_ACCOUNTS, internal.clone(), &[ACCOUNT_OPERATOR, ACCOUNT_CLONE]),
        secret(MYSQLD_ACCOUNT, internal.clone(), &[ACCOUNT_OPERATOR]),
        secret(AGENT_TOKEN, internal, &[TOKEN_KEY]),
    ];
    if matches!(intent.tls, Tls::Auto(_)) {
        let files = [layout::TLS_CA, layout::TLS_CERTIFICATE, layout::TLS_KEY];
        volumes.push(secret(CERTIFICATES, names::tls_secret(&intent.name), &files));
    }
    volumes
}

/// A folder of the pod. What is in memory holds sockets, small files, and for a moment passwords.
fn empty(name: &str, in_memory: bool) -> Volume {
    Volume {
        name: name.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: in_memory.then(|| "Memory".to_owned()),
            size_limit: in_memory.then(|| Quantity("16Mi".into())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Some keys of a Secret, for the pod's group only.
fn secret(name: &str, secret: String, keys: &[&str]) -> Volume {
    let items = keys.iter().map(|key| KeyToPath {
        key: (*key).to_owned(),
        path: (*key).to_owned(),
        ..KeyToPath::default()
    });
    Volume {
        name: name.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            items: Some(items.collect()),
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn fixed(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value),
        ..EnvVar::default()
    }
}

fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: path.to_owned(),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.into()),
        container_port: number,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

/// Over nodes and zones as far as possible, where the user says nothing.
fn spread(intent: &Intent) -> Vec<TopologySpreadConstraint> {
    if !intent.pod.topology_spread_constraints.is_empty() {
        return intent.pod.topology_spread_constraints.clone();
    }
    ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        .map(|key| TopologySpreadConstraint {
            max_skew: 1,
            topology_key: key.into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Some(super::selector(intent)),
            ..TopologySpreadConstraint::default()
        })
        .into()
}
