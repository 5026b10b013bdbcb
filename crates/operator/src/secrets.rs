//! Secrets as a cluster's loop reads them, and the operator's own certificate.
//!
//! The watch shows metadata only. A Secret's content is read when its resourceVersion is new, and kept by its cluster's
//! loop alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use stateward_etcd::Tls;

use crate::Shared;
use crate::caches::Key;

const CLIENT_KEYS: [&str; 3] = ["etcd-client.crt", "etcd-client.key", "etcd-client-ca.crt"];

type Content = Arc<BTreeMap<String, ByteString>>;
type Annotations = Option<BTreeMap<String, String>>;

/// What a loop has read, by name.
#[derive(Default)]
pub(crate) struct SecretReader {
    /// The version that the watch showed, with what was there when it was read.
    read: HashMap<String, (String, Content, Annotations)>,
    certificates: HashMap<String, (String, Tls)>,
}

/// A Secret's content, resourceVersion and annotations.
pub(crate) struct Found {
    pub(crate) version: String,
    pub(crate) content: Content,
    pub(crate) annotations: Annotations,
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
        if let Some((read, content, annotations)) = self.read.get(name)
            && *read == version
        {
            return Ok(Some(Found {
                version,
                content: content.clone(),
                annotations: annotations.clone(),
            }));
        }
        let api: Api<Secret> = Api::namespaced(shared.client.clone(), &cluster.namespace);
        let Some(secret) = api.get_opt(name).await? else {
            return Ok(None);
        };
        let content = Arc::new(secret.data.unwrap_or_default());
        let annotations = secret.metadata.annotations;
        let read = (version.clone(), content.clone(), annotations.clone());
        self.read.insert(name.to_owned(), read);
        Ok(Some(Found {
            version,
            content,
            annotations,
        }))
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
