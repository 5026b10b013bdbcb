//! The engines of the `stateward` program, and the operator that runs them. This is the only list of engines.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use stateward_etcd_driver::Etcd;
use stateward_mysql_driver::MySQL;
use stateward_runtime::operator::{self, AGENT_IMAGE};
use tokio_util::sync::CancellationToken;

/// The settings of the operator and of its engines.
#[derive(Clone, Debug)]
pub struct Config {
    /// What every engine shares.
    pub operator: operator::Config,
    /// The image with this program, which members' pods copy it from.
    pub agent_image: String,
    /// The etcd engine.
    pub etcd: stateward_etcd_driver::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            operator: operator::Config::default(),
            agent_image: AGENT_IMAGE.to_owned(),
            etcd: stateward_etcd_driver::Config::default(),
        }
    }
}

/// The CustomResourceDefinitions of all engines.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [stateward_etcd::api::crds::all(), stateward_mysql::api::crds::all()].concat()
}

/// Runs the operator until `stop` is cancelled.
pub async fn run(config: Config, client: Client, stop: CancellationToken) -> Result<(), operator::Error> {
    operator::run(config.operator, client, stop, |runtime| {
        vec![Etcd::new(runtime, config.etcd), MySQL::new(runtime, config.agent_image)]
    })
    .await
}
