//! What the pod of a restored first member has beside every other one: two init containers that make its data from the
//! backup. The first brings the program, the second runs it in an image of etcd, which has the tools.
//!
//! The task is an annotation of the pod, read at every start: sealing the pod takes it away, so that a pod which is set up
//! anew on an emptied volume does not bring the backup back under a member that has voted since.

use crate::api::agent::{Mounts, Place, RestoreTask, TASK, Task};
use crate::api::etcd_backup::ObjectName;
use crate::api::etcd_restore::{EtcdRestoreSpec, RestoreSource};
use crate::api::{EtcdCluster, EtcdRestore, EtcdVersion};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, Volume, VolumeMount,
};

use super::flags::VOLUME;
use super::launch;
use crate::cluster::facts::restore_tool_version;
use crate::cluster::{Intent, MemberName};
use stateward_core::agent::{StoreMounts, mount};

/// The init container that makes the data.
pub const CONTAINER: &str = "restore";

/// The task of the second init container.
pub(super) fn task(intent: &Intent, member: &MemberName, source: &RestoreSource, token: &str, tls: bool) -> String {
    let task = Task::Restore(RestoreTask {
        place: Place {
            store: source.store.clone(),
            encrypted: source.encryption.is_some(),
            ..Place::default()
        },
        location: source.location.clone(),
        sha256: source.sha256.clone(),
        revision: source.revision,
        restore_to: source.restore_to.clone(),
        revision_bump: source.revision_bump,
        data_dir: format!("{VOLUME}/data"),
        member: member.0.clone(),
        peer_url: intent.peer_url(member, tls),
        token: token.to_owned(),
    });
    serde_json::to_string(&task).unwrap_or_default()
}

/// Adds the init containers and what they read.
pub(super) fn add(
    spec: &mut PodSpec,
    cluster: &EtcdCluster,
    source: &RestoreSource,
    version: &EtcdVersion,
    agent_image: &str,
) {
    let etcd = spec.containers.first().cloned().unwrap_or_default();
    let (sources, mut mounts) = sources(source);
    let volumes = spec.volumes.get_or_insert_default();
    volumes.extend(sources);
    volumes.push(Volume {
        name: "stateward-tools".into(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    let tools = mount("stateward-tools", Mounts::TOOLS, false);
    mounts.push(tools.clone());
    mounts.push(mount("etcd-data", VOLUME, false));
    let base = Container {
        security_context: etcd.security_context.clone(),
        resources: etcd.resources.clone(),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    };
    spec.init_containers = Some(vec![
        Container {
            name: "tools".into(),
            image: Some(agent_image.to_owned()),
            args: Some(vec!["agent".into(), "install".into()]),
            volume_mounts: Some(vec![tools]),
            ..base.clone()
        },
        Container {
            name: CONTAINER.into(),
            image: Some(cluster.image(&restore_tool_version(version))),
            command: Some(vec![format!("{}/stateward", Mounts::TOOLS)]),
            args: Some(vec!["agent".into(), "run".into()]),
            env: Some(vec![EnvVar {
                name: TASK.into(),
                value_from: Some(EnvVarSource {
                    field_ref: Some(ObjectFieldSelector {
                        api_version: None,
                        field_path: format!("metadata.annotations['{}']", launch::RESTORE),
                    }),
                    ..EnvVarSource::default()
                }),
                ..EnvVar::default()
            }]),
            volume_mounts: Some(mounts),
            ..base
        },
    ]);
    if source.service_account_name.is_some() {
        spec.service_account_name.clone_from(&source.service_account_name);
    }
}

/// An EtcdRestore that the cluster asks for itself, and that goes with it.
pub fn requested_restore(cluster: &EtcdCluster, name: &str, backup: &str) -> EtcdRestore {
    let spec = EtcdRestoreSpec {
        etcd_cluster: ObjectName {
            name: cluster.name().to_owned(),
        },
        backup_ref: Some(ObjectName { name: backup.into() }),
        ..EtcdRestoreSpec::default()
    };
    EtcdRestore {
        metadata: super::metadata(cluster, name.to_owned()),
        spec,
        status: None,
    }
}

/// Secrets and claim of the store. The secrets are optional: once the data is there, the pod must start without them too.
fn sources(source: &RestoreSource) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mut sources = StoreMounts {
        prefix: "backup-",
        reading_once: true,
        ..StoreMounts::default()
    };
    sources.add(source.store.store(None).ok(), source.encryption.as_ref());
    (sources.volumes, sources.mounts)
}
