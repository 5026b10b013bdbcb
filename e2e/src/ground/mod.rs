//! The two grounds that every scenario runs on: the embedded Kubernetes and a real one. A ground gives a client, runs the
//! operator, and breaks things.

pub(crate) mod embedded;
mod here;
pub(crate) mod real;

use anyhow::Result;
use futures::future::LocalBoxFuture;
use stateward_api::EtcdVersion;

/// Somewhere to run scenarios.
pub(crate) trait Ground: Send + Sync {
    /// `embedded` or `real`.
    fn name(&self) -> &'static str;
    /// An administrator's client.
    fn client(&self) -> kube::Client;
    /// The etcd versions that it has images of.
    fn versions(&self) -> Vec<EtcdVersion>;
    /// Why this ground cannot do something, if it cannot.
    fn lacks(&self, need: Need) -> Option<&'static str>;
    /// Breaks or mends something; returns when it has happened.
    fn fault(&self, fault: Fault) -> LocalBoxFuture<'_, Result<()>>;
    /// Ends the operator as a crash does.
    fn kill_operator(&self) -> LocalBoxFuture<'_, Result<()>>;
    /// Starts it again, and returns when it works.
    fn start_operator(&self) -> LocalBoxFuture<'_, Result<()>>;
    /// Where an administrator's kubeconfig is, for programs that people use.
    fn kubeconfig(&self) -> std::path::PathBuf;
    /// Lets the operator run in this process, where it can be counted, or again where it is at home.
    fn operator_here(&self, _here: bool) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
    /// Where pods reach what listens in this process and in those it starts, if they can.
    fn address(&self) -> Option<std::net::IpAddr> {
        None
    }
    /// What the operator asks of the API, counted; only while it runs in this process.
    fn meter(&self) -> Option<std::sync::Arc<crate::meter::Meter>> {
        None
    }
    /// Lets another operator run beside the first, or ends it; only while operators run in this process.
    fn second_operator(&self, _runs: bool) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { anyhow::bail!("a second operator cannot be started here") })
    }
    /// The last lines of the operator's log.
    fn operator_log(&self) -> LocalBoxFuture<'_, String>;
}

/// What a scenario needs of its ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Three nodes that can be stopped one by one.
    Nodes,
    /// Cutting pods off from each other.
    Cuts,
    /// etcd of every minor from 3.2 to 3.7.
    AllVersions,
    /// kubectl.
    Kubectl,
    /// An S3 server that pods can reach.
    S3,
    /// Helm.
    Helm,
    /// A cert-manager that can be started.
    CertManager,
    /// The definitions of the Prometheus operator.
    PrometheusOperator,
    /// The operator in a pod of its own, as it is shipped.
    OperatorPod,
    /// The operator's image of the release before.
    Previous,
    /// The operator in this process for a while, where its requests can be counted and stopped.
    Meter,
    /// An API server that can be stopped.
    ApiServer,
}

/// Why no ground has something that `./x` has not fetched, if so.
fn not_fetched(need: Need) -> Option<&'static str> {
    match need {
        Need::CertManager if !crate::cert_manager::is_built() => Some(crate::cert_manager::NOT_BUILT),
        Need::PrometheusOperator if crate::definitions::folder(crate::definitions::PROMETHEUS).is_none() => {
            Some("there are no definitions of the Prometheus operator; ./x chart fetches them")
        }
        _ => None,
    }
}

/// What can be broken and mended. Pods and claims by namespace and name.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// End the processes of a pod.
    Kill(String, String),
    /// Stop them without ending them.
    Freeze(String, String),
    /// Let them go on.
    Thaw(String, String),
    /// Empty a claim's volume; its processes end.
    LoseVolume(String, String),
    /// Damage files of a claim's volume; its processes end.
    CorruptVolume(String, String),
    /// Cut files of a claim's volume to half; its processes end.
    TruncateVolume(String, String),
    /// Take a node's power.
    StopNode(String),
    /// Give it back.
    StartNode(String),
    /// Let nothing pass between two pods.
    Cut(String, String, String),
    /// Let nothing pass between the operator and a pod.
    CutOperator(String, String),
    /// Let nothing pass between a node and the API server; its pods go on.
    CutNode(String),
    /// Undo all cuts.
    Heal,
    /// End the API server.
    StopApi,
    /// Start it again.
    StartApi,
}
