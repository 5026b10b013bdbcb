//! EtcdCluster: an etcd cluster that is created, scaled, healed, upgraded, secured and looked after.

mod maintenance;
mod pod;
mod spec;
mod status;
mod storage;
mod tls;

pub use maintenance::{
    AutoCompaction, AutoCompactionMode, Defragmentation, Maintenance, Metrics, MetricsMode, OnQuorumLoss, Recovery,
    ServicePolicy, ServiceType, UpdateStrategy, UpdateStrategyType,
};
pub use pod::PodPolicy;
pub use spec::{Bootstrap, EtcdCluster, EtcdClusterSpec};
pub use status::{
    BootstrapPhase, BootstrapRecord, CrashReplacement, DefragmentationRecord, EtcdClusterStatus, MemberHealth,
    MemberRole, MemberSeen, MemberStatus, MembersStatus, OldClaims, OldLog, Phase, RecoveryPhase, RecoveryRecord,
    RestoreRecord, TlsStatus, UpgradeRecord,
};
pub use storage::{Medium, Retain, Storage};
pub use tls::{AutoTls, CertManagerTls, IssuerRef, StaticMemberTls, StaticTls, Tls, TlsPolicy};

use crate::api::version::{EtcdVersion, VersionError};
use crate::api::{DEFAULT_REPOSITORY, DEFAULT_VERSION, names};

impl EtcdCluster {
    /// The name; the API server gives every object one.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// The version to run: the spec's; else what the cluster runs or was going to, so that a new default in a later
    /// Stateward upgrades nothing by itself (rule 6 in docs/rules.md); else the default.
    pub fn version(&self) -> Result<EtcdVersion, VersionError> {
        let recorded = self.status.as_ref().into_iter().flat_map(|status| {
            [status.target_version.as_str(), status.current_version.as_str()]
                .into_iter()
                .filter(|text| !text.is_empty())
        });
        let wanted = self
            .spec
            .version
            .as_deref()
            .into_iter()
            .chain(recorded)
            .next()
            .unwrap_or(DEFAULT_VERSION);
        EtcdVersion::parse_supported(wanted)
    }

    /// The repository of the image.
    pub fn repository(&self) -> &str {
        self.spec.repository.as_deref().unwrap_or(DEFAULT_REPOSITORY)
    }

    /// The image of a version: `repository:v<version>`.
    pub fn image(&self, version: &EtcdVersion) -> String {
        format!("{}:{}", self.repository(), version.tag())
    }

    /// The domain appended to members' names, or the empty string.
    pub fn cluster_domain(&self) -> &str {
        self.spec
            .pod
            .as_ref()
            .and_then(|pod| pod.cluster_domain.as_deref())
            .unwrap_or_default()
    }

    /// The DNS name of a member of this cluster.
    pub fn member_host(&self, member: &str) -> String {
        names::member_host(member, self.name(), self.namespace(), self.cluster_domain())
    }

    /// The TLS that is asked for, or none.
    pub fn tls(&self) -> Tls<'_> {
        match self.spec.tls.as_ref().map_or(Tls::Off, TlsPolicy::mode) {
            Tls::Static(secrets) if self.hands_out(secrets) => Tls::Copied(secrets),
            mode => mode,
        }
    }

    /// Members were given Secrets that Stateward writes, by `auto` or `certManager`. They keep those: what the user's own
    /// Secrets hold comes into them by the steps of any other rotation.
    fn hands_out(&self, secrets: &StaticTls) -> bool {
        let written = names::tls_secrets(self.name());
        let status = self.status.as_ref().and_then(|status| status.tls.as_ref());
        let mounted = status.is_some_and(|tls| tls.peers && tls.peer_secret == written[0]);
        let own = [
            secrets.peer_secret(),
            secrets.server_secret(),
            secrets.operator_secret.as_deref(),
        ];
        mounted
            && own
                .iter()
                .all(|own| own.is_some_and(|own| written.iter().all(|name| name != own)))
    }
}
