//! What the operator is told when it starts.

use std::net::SocketAddr;
use std::time::Duration;

use stateward_runtime::Election;

/// The project's image of this version.
pub const AGENT_IMAGE: &str = concat!("ghcr.io/stateward/stateward:", env!("CARGO_PKG_VERSION"));

/// The operator's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The one namespace to look after; `None`: all of them.
    pub namespace: Option<String>,
    /// Clusters that say nothing of storage keep their data only as long as their pods live, as with the old operator.
    pub ephemeral_by_default: bool,
    /// Create and update the CustomResourceDefinitions at start.
    pub manage_crds: bool,
    /// Where to serve `/metrics`, `/healthz`, `/readyz` and `/version`; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// How it is made sure that only one operator acts; `None`: the caller knows that there is only one.
    pub election: Option<Election>,
    /// The image with this program, which the pods run that take and restore backups.
    pub agent_image: String,
    /// Where clusters may be adopted from besides their own namespace.
    pub adopt_allow: crate::AdoptAllow,
    /// How often the members of a quiet cluster are asked how they are.
    pub health_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: None,
            ephemeral_by_default: false,
            manage_crds: true,
            listen: None,
            election: None,
            agent_image: AGENT_IMAGE.to_owned(),
            adopt_allow: crate::AdoptAllow::default(),
            health_interval: Duration::from_secs(10),
        }
    }
}
