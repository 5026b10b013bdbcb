//! What was observed for one EtcdBackup. Plain data: `operator` fills it from the API, `sim` from its model.

use std::collections::BTreeMap;

use stateward_api::agent::Progress;
use stateward_api::{DEFAULT_REPOSITORY, EtcdCluster, names};

use crate::agent::Agent;
use crate::etcd::manifests::tls_secrets;

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
    /// The image with the `stateward` program.
    pub image: String,
}

/// What is backed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSource {
    /// Client URLs of its ready members.
    pub members: Vec<String>,
    /// Client URL of its service.
    pub service: String,
    /// The secret to connect with.
    pub client_secret: Option<String>,
    /// Where its images come from.
    pub repository: String,
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
        }
    }
}

impl Source {
    /// The repository of etcd's images.
    pub(super) fn repository(&self) -> &str {
        match self {
            Self::Cluster(cluster) => &cluster.repository,
            Self::Endpoints | Self::NoCluster => DEFAULT_REPOSITORY,
        }
    }
}
