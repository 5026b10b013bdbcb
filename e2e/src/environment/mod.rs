//! The two environments that every scenario runs in: the embedded Kubernetes and a real one. An environment provides a
//! client, runs the operator, and injects faults.

pub(crate) mod embedded;
mod in_process;
pub(crate) mod real;

use anyhow::Result;
use futures::future::LocalBoxFuture;
use stateward_etcd::api::EtcdVersion;

/// A place to run scenarios in.
pub(crate) trait Environment: Send + Sync {
    /// `embedded` or `real`.
    fn name(&self) -> &'static str;
    /// A client with administrator permissions.
    fn client(&self) -> kube::Client;
    /// The etcd versions that it has images of.
    fn versions(&self) -> Vec<EtcdVersion>;
    /// Why this environment cannot do something, if it cannot.
    fn lacks(&self, need: Need) -> Option<&'static str>;
    /// Injects a fault or undoes one. Returns when it has happened.
    fn fault(&self, fault: Fault) -> LocalBoxFuture<'_, Result<()>>;
    /// Kills the operator as a crash does.
    fn kill_operator(&self) -> LocalBoxFuture<'_, Result<()>>;
    /// Starts the operator and returns when it works.
    fn start_operator(&self) -> LocalBoxFuture<'_, Result<()>>;
    /// The path of an administrator's kubeconfig, for command-line tools.
    fn kubeconfig(&self) -> std::path::PathBuf;
    /// Moves the operator into this process, where its requests can be counted, or back to where it normally runs.
    fn operator_in_process(&self, _in_process: bool) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
    /// The address at which pods reach this process and the processes that it starts, if they can.
    fn address(&self) -> Option<std::net::IpAddr> {
        None
    }
    /// The operator's request counts, while it runs in this process.
    fn meter(&self) -> Option<std::sync::Arc<crate::meter::Meter>> {
        None
    }
    /// Starts or stops a second operator, while operators run in this process.
    fn second_operator(&self, _runs: bool) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { anyhow::bail!("a second operator cannot run in this environment") })
    }
    /// The last lines of the operator's log.
    fn operator_log(&self) -> LocalBoxFuture<'_, String>;
}

/// What a scenario needs from its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Three nodes that can be stopped one by one.
    Nodes,
    /// Network cuts between pods.
    Cuts,
    /// Every minor version of etcd from 3.2 to 3.7.
    AllVersions,
    /// kubectl.
    Kubectl,
    /// An S3 server that pods can reach.
    S3,
    /// Helm.
    Helm,
    /// A cert-manager.
    CertManager,
    /// The CustomResourceDefinitions of the Prometheus operator.
    PrometheusOperator,
    /// The operator in its own pod, as it is shipped.
    OperatorPod,
    /// The operator image of the previous release.
    Previous,
    /// An operator in this process, whose requests can be counted and stopped.
    Meter,
    /// An API server that can be stopped.
    ApiServer,
    /// An image of the catalogue (`pins/images.yaml`), by name and tag.
    Image(&'static str),
}

/// The environment variable with the images of the catalogue that `./x` provided: `mysql:9.7=9.7.4`, separated by commas, and
/// without the version where it is not known.
const IMAGES: &str = "STATEWARD_PROVIDED_IMAGES";

/// The version of an image that `./x` provided, where it is known: of `mysql:9.7`, for example 9.7.4.
pub(crate) fn provided_version(image: &str) -> Option<String> {
    provided(&std::env::var(IMAGES).unwrap_or_default(), image)?
}

/// Whether an image is among those that were provided, and its version if it is known.
fn provided(all: &str, image: &str) -> Option<Option<String>> {
    let mut entries = all.split(',').map(|entry| match entry.split_once('=') {
        Some((title, version)) => (title, Some(version.to_owned())),
        None => (entry, None),
    });
    entries.find_map(|(title, version)| (title == image).then_some(version))
}

/// Why no environment has something that `./x` did not fetch, if that is so.
fn not_fetched(need: Need) -> Option<&'static str> {
    match need {
        Need::CertManager if !crate::cert_manager::is_built() => Some(crate::cert_manager::NOT_BUILT),
        Need::PrometheusOperator if crate::definitions::folder(crate::definitions::PROMETHEUS).is_none() => {
            Some("the definitions of the Prometheus operator are missing; ./x chart fetches them")
        }
        Need::Image(image) => {
            let is_there = provided(&std::env::var(IMAGES).unwrap_or_default(), image).is_some();
            (!is_there).then_some("an image is missing; ./x e2e and ./x kube test build those that they need")
        }
        _ => None,
    }
}

/// Faults and their reversals. Pods and claims are given by namespace and name.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Kills the processes of a pod.
    Kill(String, String),
    /// Stops the processes of a pod without killing them.
    Freeze(String, String),
    /// Resumes the processes of a frozen pod.
    Thaw(String, String),
    /// Empties the volume of a claim and kills the processes that use it.
    LoseVolume(String, String),
    /// Damages files of a claim's volume and kills the processes that use it.
    CorruptVolume(String, String),
    /// Cuts files of a claim's volume to half and kills the processes that use it.
    TruncateVolume(String, String),
    /// Powers a node off.
    StopNode(String),
    /// Powers a node on.
    StartNode(String),
    /// Drops all packets between two pods.
    Cut(String, String, String),
    /// Drops all packets between the operator and a pod.
    CutOperator(String, String),
    /// Drops all packets between a node and the API server; its pods keep running.
    CutNode(String),
    /// Undoes all cuts.
    Heal,
    /// Stops the API server.
    StopApi,
    /// Starts the API server.
    StartApi,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provided_images_are_found_with_and_without_a_version() {
        let all = "mysql:9.7=9.7.4,etcd:3.5.35";
        assert_eq!(provided(all, "mysql:9.7"), Some(Some("9.7.4".to_owned())));
        assert_eq!(provided(all, "etcd:3.5.35"), Some(None));
        assert_eq!(provided(all, "mysql:9"), None);
        assert_eq!(provided("", "mysql:9.7"), None);
    }
}
