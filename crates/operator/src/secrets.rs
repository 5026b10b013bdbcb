//! The Secrets of a cluster's TLS: are they there, do they hold what etcd needs, and the operator's own certificate.
//!
//! The watch shows metadata only. A Secret's content is read when its resourceVersion is new, and kept by its cluster's
//! loop alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use stateward_api::EtcdCluster;
use stateward_etcd::Tls;
use stateward_plan::etcd::Secrets;
use stateward_plan::etcd::manifests::tls_secrets;

use crate::caches::Key;
use crate::{Shared, certificates};

const PEER_KEYS: [&str; 3] = ["peer.crt", "peer.key", "peer-ca.crt"];
const SERVER_KEYS: [&str; 3] = ["server.crt", "server.key", "server-ca.crt"];
const CLIENT_KEYS: [&str; 3] = ["etcd-client.crt", "etcd-client.key", "etcd-client-ca.crt"];

type Content = Arc<BTreeMap<String, ByteString>>;

/// What a loop has read, by name.
#[derive(Default)]
pub(crate) struct SecretReader {
    read: HashMap<String, (String, Content)>,
    certificates: HashMap<String, (String, Tls)>,
}

/// A Secret's content and resourceVersion.
pub(crate) struct Found {
    pub(crate) version: String,
    pub(crate) content: Content,
}

impl SecretReader {
    /// The content of a Secret; `None`: it is not there.
    pub(crate) async fn find(&mut self, shared: &Shared, cluster: &Key, name: &str) -> kube::Result<Option<Found>> {
        let key = Key::new(cluster.namespace.clone(), name);
        shared.secret_users.uses(key.clone(), cluster);
        let Some(seen) = shared.caches.secrets.get(&key) else {
            self.read.remove(name);
            return Ok(None);
        };
        let version = seen.metadata.resource_version.clone().unwrap_or_default();
        if let Some((read, content)) = self.read.get(name)
            && *read == version
        {
            return Ok(Some(Found {
                version,
                content: content.clone(),
            }));
        }
        let api: Api<Secret> = Api::namespaced(shared.client.clone(), &cluster.namespace);
        let Some(secret) = api.get_opt(name).await? else {
            return Ok(None);
        };
        let content = Arc::new(secret.data.unwrap_or_default());
        self.read.insert(name.to_owned(), (version.clone(), content.clone()));
        Ok(Some(Found { version, content }))
    }

    /// Whether everything that the spec's TLS needs is there.
    pub(crate) async fn judge(&mut self, shared: &Shared, key: &Key, cluster: &EtcdCluster) -> kube::Result<Secrets> {
        if let Some(first) = certificates::due(shared, key, cluster) {
            return Ok(Secrets::Due { first });
        }
        let names = tls_secrets(cluster);
        let needed = [
            (names.peer, PEER_KEYS),
            (names.server, SERVER_KEYS),
            (names.client, CLIENT_KEYS),
        ];
        for (name, keys) in needed {
            let Some(name) = name else { continue };
            let Some(found) = self.find(shared, key, &name).await? else {
                return Ok(Secrets::Missing(format!(
                    "the Secret {name} is not there: create it with the keys {}",
                    keys.join(", ")
                )));
            };
            if let Some(lacking) = keys.iter().find(|key| !found.content.contains_key(**key)) {
                return Ok(Secrets::Missing(format!("the Secret {name} lacks the key {lacking}")));
            }
        }
        Ok(Secrets::Good)
    }

    /// The certificate to connect with, from a Secret with the old operator's keys, and a word for its version.
    pub(crate) async fn client_certificate(
        &mut self,
        shared: &Shared,
        cluster: &Key,
        name: &str,
    ) -> Result<(Tls, String), String> {
        let found = match self.find(shared, cluster, name).await {
            Ok(Some(found)) => found,
            Ok(None) => return Err(format!("the Secret {name} to connect with is not there")),
            Err(error) => return Err(format!("the Secret {name} could not be read: {error}")),
        };
        if let Some((version, tls)) = self.certificates.get(name)
            && *version == found.version
        {
            return Ok((tls.clone(), found.version));
        }
        let get = |key: &str| found.content.get(key).map(|value| value.0.as_slice());
        let [certificate, private, ca] = CLIENT_KEYS;
        let identity = get(certificate).zip(get(private));
        let ca = get(ca).ok_or_else(|| format!("the Secret {name} lacks the key {ca}"))?;
        let tls = Tls::new(ca, identity).map_err(|error| format!("the Secret {name}: {error}"))?;
        self.certificates
            .insert(name.to_owned(), (found.version.clone(), tls.clone()));
        Ok((tls, found.version))
    }
}
