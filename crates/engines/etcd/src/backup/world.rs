//! What was observed for one EtcdBackup. Plain data: `operator` fills it from the API, `sim` from its model.

use std::collections::BTreeMap;

use crate::api::agent::Progress;
use crate::api::{DEFAULT_REPOSITORY, EtcdCluster, names};
use k8s_openapi::api::core::v1::LocalObjectReference;

use super::shared::Sharer;
use crate::agent::Agent;
use crate::cluster::manifests::tls_secrets;

/// Everything observed in one round.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Pods that this EtcdBackup (by UID) owns, by name.
    pub agents: BTreeMap<String, Agent>,
    /// What is backed up.
    pub source: Source,
    /// A Secret that pods would mount and that is not there, in words that say what to do.
    pub missing: Option<String>,
    /// The versions of the Secrets that are used, as one word.
    pub secrets: String,
    /// What the pod that streams changes said when it was asked in this round.
    pub progress: Option<Progress>,
    /// Another EtcdBackup with the same place.
    pub sharer: Option<Sharer>,
    /// The image with the `stateward` program.
    pub image: String,
}

/// What is backed up.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Source {
    /// What `etcdEndpoints` says.
    #[default]
    Endpoints,
    /// The EtcdCluster that `clusterRef` names is not there.
    NoCluster,
    /// The EtcdCluster.
    Cluster(Box<ClusterSource>),
}

/// An EtcdCluster as a backup sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSource {
    /// Client URLs of its ready members.
    pub members: Vec<String>,
    /// Client URL of its service.
    pub service: String,
    /// The secret to connect with.
    pub client_secret: Option<String>,
    /// Where its images come from.
    pub repository: String,
    /// What pulls them: agents use images of the same registries.
    pub image_pull_secrets: Vec<LocalObjectReference>,
}

impl ClusterSource {
    /// What a backup needs to know of a cluster. Addresses are the names that certificates carry.
    pub fn of(cluster: &EtcdCluster) -> Self {
        let tls = cluster.tls().clients();
        let url = |host: &str| names::url(tls, host, names::CLIENT_PORT);
        let ready = cluster
            .status
            .as_ref()
            .map(|status| status.members.ready.as_slice())
            .unwrap_or_default();
        Self {
            members: ready.iter().map(|member| url(&cluster.member_host(member))).collect(),
            service: url(&names::client_host(
                cluster.name(),
                cluster.namespace(),
                cluster.cluster_domain(),
            )),
            client_secret: tls_secrets(cluster).client.filter(|_| tls),
            repository: cluster.repository().to_owned(),
            image_pull_secrets: image_pull_secrets(cluster),
        }
    }
}

/// The Secrets that a cluster's pods pull their images with.
pub(crate) fn image_pull_secrets(cluster: &EtcdCluster) -> Vec<LocalObjectReference> {
    let pod = cluster.spec.pod.as_ref();
    pod.map(|pod| pod.image_pull_secrets.clone()).unwrap_or_default()
}

impl Source {
    /// The Secrets to pull images with.
    pub(super) fn image_pull_secrets(&self) -> Vec<LocalObjectReference> {
        match self {
            Self::Cluster(cluster) => cluster.image_pull_secrets.clone(),
            Self::Endpoints | Self::NoCluster => Vec::new(),
        }
    }

    /// The repository of etcd's images.
    pub(super) fn repository(&self) -> &str {
        match self {
            Self::Cluster(cluster) => &cluster.repository,
            Self::Endpoints | Self::NoCluster => DEFAULT_REPOSITORY,
        }
    }
}
