//! Secrets as a cluster's loop reads them, and the operator's own certificate.
//!
//! What is watched or looked at (`stateward_runtime::secrets`) is metadata only. A Secret's content is read when its resourceVersion is new, and kept
//! by its cluster's loop alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::client::Tls;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use stateward_core::kind::Kind;
use stateward_etcd::cluster::Cluster;

use crate::Shared;
use crate::observe::is_owned;
use stateward_runtime::Key;
use stateward_runtime::secrets::{KIND, look};

const CLIENT_KEYS: [&str; 3] = ["etcd-client.crt", "etcd-client.key", "etcd-client-ca.crt"];

type Content = Arc<BTreeMap<String, ByteString>>;
type Annotations = Option<BTreeMap<String, String>>;

/// A change of the Secret wakes the cluster.
fn uses(shared: &Shared, cluster: &Key, secret: &Key) {
    let workers = &shared.runtime.workers;
    workers.uses((Cluster::NAME, cluster), (KIND, secret.clone()));
}

/// What a loop has read, by name.
#[derive(Default)]
pub(crate) struct SecretReader {
    /// The version that the watch showed, with what was there when it was read.
    read: HashMap<String, (String, Content, Annotations)>,
    certificates: HashMap<String, (String, Tls)>,
    /// When each change of what is trusted was first seen here: the time in a Secret is of another clock.
    changes: HashMap<jiff::Timestamp, std::time::Instant>,
}

impl SecretReader {
    /// For how long a change has been seen, by a clock that nobody sets.
    pub(crate) fn seen_for(&mut self, change: jiff::Timestamp) -> std::time::Duration {
        if self.changes.len() > 16 {
            self.changes.retain(|known, _| *known == change);
        }
        self.changes
            .entry(change)
            .or_insert_with(std::time::Instant::now)
            .elapsed()
    }
}

/// A Secret's content, resourceVersion and annotations.
pub(crate) struct Found {
    pub(crate) version: String,
    pub(crate) content: Content,
    pub(crate) annotations: Annotations,
}

/// Whose a Secret is that has the name of one that Stateward makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This cluster's, by UID.
    Ours,
    /// Of an earlier cluster of the same name: it goes with that one, and whoever relied on it would be left with certificates of a
    /// CA that is gone.
    LeftBehind,
    /// Somebody else's: it is never written, owned or used.
    Theirs,
}

/// Whose a Secret is, by its owner; labels prove nothing.
pub(crate) fn whose(meta: &ObjectMeta, cluster: &str, uid: &str) -> Whose {
    let mut owners = meta.owner_references.iter().flatten();
    if is_owned(meta, uid) {
        Whose::Ours
    } else if owners.any(|owner| owner.kind == "EtcdCluster" && owner.name == cluster) {
        Whose::LeftBehind
    } else {
        Whose::Theirs
    }
}

/// What is known of a Secret that Stateward makes.
pub(crate) enum Owned<T> {
    /// It is this cluster's.
    Ours(T),
    /// It is not there, or goes with an earlier cluster.
    Free,
    /// Somebody else's has its name.
    Theirs,
}

/// What to do about a Secret of somebody else's.
pub(crate) fn taken(secret: &str) -> String {
    format!(
        "the Secret {secret} exists and was not made for this cluster, so it is neither used nor changed: delete it, choose another name for the cluster, or set TLS.static with Secrets of your own"
    )
}

impl SecretReader {
    /// The content of a Secret; `None`: it is not there.
    pub(crate) async fn find(&mut self, shared: &Shared, cluster: &Key, name: &str) -> kube::Result<Option<Found>> {
        let key = Key::new(cluster.namespace.clone(), name);
        uses(shared, cluster, &key);
        match look(&shared.runtime, &key).await? {
            Some(seen) => self.read(shared, &key, &seen.metadata).await,
            None => {
                self.read.remove(name);
                Ok(None)
            }
        }
    }

    /// The same for a Secret that only Stateward writes.
    pub(crate) async fn find_own(
        &mut self,
        shared: &Shared,
        cluster: &Key,
        uid: &str,
        name: &str,
    ) -> kube::Result<Owned<Found>> {
        let key = Key::new(cluster.namespace.clone(), name);
        uses(shared, cluster, &key);
        let Some(seen) = look(&shared.runtime, &key).await? else {
            self.read.remove(name);
            return Ok(Owned::Free);
        };
        Ok(match whose(&seen.metadata, &cluster.name, uid) {
            Whose::Ours => match self.read(shared, &key, &seen.metadata).await? {
                Some(found) => Owned::Ours(found),
                None => Owned::Free,
            },
            Whose::LeftBehind => Owned::Free,
            Whose::Theirs => {
                shared.runtime.secrets.hurry(&key);
                Owned::Theirs
            }
        })
    }

    async fn read(&mut self, shared: &Shared, key: &Key, seen: &ObjectMeta) -> kube::Result<Option<Found>> {
        let version = seen.resource_version.clone().unwrap_or_default();
        if let Some((read, content, annotations)) = self.read.get(&key.name)
            && *read == version
        {
            return Ok(Some(Found {
                version,
                content: content.clone(),
                annotations: annotations.clone(),
            }));
        }
        let api: Api<Secret> = Api::namespaced(shared.runtime.client.clone(), &key.namespace);
        let Some(secret) = api.get_opt(&key.name).await?.filter(|now| now.metadata.uid == seen.uid) else {
            shared.runtime.secrets.forget(key);
            return Ok(None);
        };
        let content = Arc::new(secret.data.unwrap_or_default());
        let annotations = secret.metadata.annotations;
        let read = (version.clone(), content.clone(), annotations.clone());
        self.read.insert(key.name.clone(), read);
        Ok(Some(Found {
            version,
            content,
            annotations,
        }))
    }

    /// The certificate to connect with, from a Secret with the old operator's keys, and a word for its version. `owner`: the UID of the
    /// cluster, where it must be a Secret that Stateward wrote. When somebody put another in its place, the certificate before goes on.
    pub(crate) async fn client_certificate(
        &mut self,
        shared: &Shared,
        cluster: &Key,
        name: &str,
        owner: Option<&str>,
    ) -> Result<(Tls, String), String> {
        let found = match owner {
            None => self.find(shared, cluster, name).await,
            Some(uid) => match self.find_own(shared, cluster, uid, name).await {
                Ok(Owned::Ours(found)) => Ok(Some(found)),
                Ok(Owned::Free) => Ok(None),
                Ok(Owned::Theirs) => {
                    let before = self.certificates.get(name);
                    let before = before.map(|(version, tls)| (tls.clone(), version.clone()));
                    return before.ok_or_else(|| format!("the Secret {name} to connect with is not this cluster's"));
                }
                Err(error) => Err(error),
            },
        };
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Err(format!("the Secret {name} to connect with does not exist")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    #[test]
    fn a_secret_is_ours_by_its_owner_and_not_by_its_labels() {
        let owned = |kind: &str, name: &str, uid: &str| ObjectMeta {
            owner_references: Some(vec![OwnerReference {
                kind: kind.into(),
                name: name.into(),
                uid: uid.into(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        };
        let whose = |meta: &ObjectMeta| whose(meta, "c", "new");
        assert_eq!(whose(&owned("EtcdCluster", "c", "new")), Whose::Ours);
        assert_eq!(whose(&owned("EtcdCluster", "c", "old")), Whose::LeftBehind);
        assert_eq!(whose(&owned("EtcdCluster", "other", "x")), Whose::Theirs);
        assert_eq!(whose(&owned("Certificate", "c", "x")), Whose::Theirs);
        let labels = Some(stateward_etcd::api::names::cluster_labels("c"));
        assert_eq!(
            whose(&ObjectMeta {
                labels,
                ..ObjectMeta::default()
            }),
            Whose::Theirs
        );
    }
}
