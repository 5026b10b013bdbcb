//! Observation: the world of one EtcdBackup from the caches, and how far its pod that streams changes is. It changes nothing.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use stateward_core::kind::Kind;
use stateward_core::store::Store;
use stateward_etcd::agent::State;
use stateward_etcd::api::EtcdBackup;
use stateward_etcd::api::agent::{PROGRESS_PORT, Progress};
use stateward_etcd::backup::{Backup, ClusterSource, Sharer, Source, World, sharer};
use stateward_etcd::cluster::Cluster;
use stateward_runtime::Key;
use stateward_runtime::secrets::{KIND, look};

use super::Session;
use crate::{Shared, agents};

/// How often the pod that streams changes is asked at most.
const ASK: Duration = Duration::from_secs(9);

/// Looks at everything of an EtcdBackup.
pub(super) async fn observe(
    shared: &Shared,
    key: &Key,
    backup: &EtcdBackup,
    session: &mut Session,
) -> kube::Result<World> {
    let current = backup.status.as_ref().and_then(|status| status.current.as_ref());
    let mut world = World {
        image: shared.config.agent_image.clone(),
        agents: agents::of(shared, key, backup, current.map(|current| current.pod.as_str())).await?,
        source: source(shared, key, backup),
        sharer: other_of_path(shared, key, backup),
        ..World::default()
    };
    secrets(shared, key, backup, &mut world).await?;
    let follower = world
        .agents
        .values()
        .find(|agent| agent.component == "follow" && agent.state == State::Running && agent.terminating.is_none());
    if let Some(address) = follower.and_then(|agent| agent.address.clone())
        && session.is_none_or(|asked| asked.elapsed() >= ASK)
    {
        *session = Some(Instant::now());
        world.progress = progress(&address).await;
    }
    Ok(world)
}

fn uses(shared: &Shared, key: &Key, kind: &'static str, used: Key) {
    shared.runtime.workers.uses((Backup::NAME, key), (kind, used));
}

/// Another EtcdBackup that writes periodic backups to the same place.
fn other_of_path(shared: &Shared, key: &Key, backup: &EtcdBackup) -> Option<Sharer> {
    let all = shared.caches.backups.all();
    let found = sharer(backup, all.iter().map(AsRef::as_ref))?;
    if let Some((namespace, name)) = found.name.split_once('/') {
        uses(shared, key, Backup::NAME, Key::new(namespace, name));
    }
    Some(found)
}

fn source(shared: &Shared, key: &Key, backup: &EtcdBackup) -> Source {
    let Some(reference) = &backup.spec.cluster_ref else {
        return Source::Endpoints;
    };
    let cluster = Key::new(key.namespace.clone(), reference.name.clone());
    uses(shared, key, Cluster::NAME, cluster.clone());
    match shared.caches.clusters.get(&cluster) {
        Some(cluster) => Source::Cluster(Box::new(ClusterSource::of(&cluster))),
        None => Source::NoCluster,
    }
}

/// The Secrets that pods mount: whether they are there, and in which version. Their content is not read.
async fn secrets(shared: &Shared, key: &Key, backup: &EtcdBackup, world: &mut World) -> kube::Result<()> {
    let plan = &backup.spec.plan;
    let client = match &world.source {
        Source::Cluster(cluster) => cluster.client_secret.clone(),
        Source::Endpoints => backup.spec.client_tls_secret.clone(),
        Source::NoCluster => None,
    };
    let store = plan.store().ok().and_then(|store| {
        let keys = match store {
            Store::S3(_) => "credentials and config",
            Store::Abs(_) => "storage-account and storage-key",
            Store::Gcs(_) => "credentials.json or access-token",
            Store::Oss(_) => "accessKeyID and accessKeySecret",
            Store::File(_) => return None,
        };
        Some((store.secret()?.to_owned(), keys.to_owned()))
    });
    let certificate = client.map(|name| {
        (
            name,
            "etcd-client.crt, etcd-client.key and etcd-client-ca.crt".to_owned(),
        )
    });
    let encryption = plan.encryption.as_ref().map(|encryption| {
        let reference = &encryption.secret_key_ref;
        let key = reference.key.clone().unwrap_or_else(|| "key".into());
        (reference.name.clone(), key)
    });
    for (name, keys) in [store, certificate, encryption].into_iter().flatten() {
        let secret = Key::new(key.namespace.clone(), name.clone());
        uses(shared, key, KIND, secret.clone());
        match look(&shared.runtime, &secret).await? {
            Some(there) => {
                let version = there.metadata.resource_version.as_deref().unwrap_or_default();
                world.secrets += &format!("{name}@{version} ");
            }
            None => {
                world.missing = Some(format!("the Secret {name} does not exist: create it with {keys}"));
            }
        }
    }
    Ok(())
}

/// Asks the pod that streams changes how far it is. No answer is not worth a word: Kubernetes says when it does not run.
async fn progress(address: &str) -> Option<Progress> {
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    };
    let uri = format!("http://{host}:{PROGRESS_PORT}/progress").parse().ok()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let asked = async {
        let reply = client.get(uri).await.ok()?;
        let body = Limited::new(reply.into_body(), 64 << 10).collect().await.ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    };
    tokio::time::timeout(Duration::from_secs(2), asked).await.ok()?
}
