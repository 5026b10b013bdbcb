//! The MySQL engine, as an operator runs it.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use prometheus_client::registry::Registry;
use stateward_runtime::operator::Engine;
use stateward_runtime::{Driver, Runtime};

use crate::MySQLDriver;

/// MySQLClusters.
pub struct MySQL(Arc<MySQLDriver>);

impl MySQL {
    /// An engine that follows nothing yet. `agent_image` has the `stateward` program.
    pub fn new(runtime: &Arc<Runtime>, agent_image: impl Into<String>) -> Arc<Self> {
        Arc::new(Self(MySQLDriver::new(runtime.clone(), agent_image)))
    }
}

impl Engine for MySQL {
    fn crds(&self) -> Vec<CustomResourceDefinition> {
        stateward_mysql::api::crds::all()
    }

    fn watches(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(self.0.clone().watches())
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.synced())
    }

    fn node_changed(&self, node: &str) {
        self.0.node_changed(node);
    }

    fn register_metrics(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    fn refresh_metrics(&self) {
        self.0.refresh_metrics();
    }
}
