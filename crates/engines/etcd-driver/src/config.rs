//! The settings of the etcd engine.

use std::time::Duration;

use stateward_runtime::operator::AGENT_IMAGE;

/// The settings of the etcd engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Clusters whose spec has no storage lose their data with their pods, as with the old operator.
    pub ephemeral_by_default: bool,
    /// The image with this program, which the pods run that take and restore backups.
    pub agent_image: String,
    /// Where clusters may be adopted from besides their own namespace.
    pub adopt_allow: crate::AdoptAllow,
    /// How often the members of a quiet cluster are probed.
    pub health_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ephemeral_by_default: false,
            agent_image: AGENT_IMAGE.to_owned(),
            adopt_allow: crate::AdoptAllow::default(),
            health_interval: Duration::from_secs(10),
        }
    }
}
