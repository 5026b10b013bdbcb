//! The Secrets of a cluster: what they hold, what is missing in them, and how they are written.
//!
//! Watches show metadata only. Content is read when the resourceVersion is new, and kept by the cluster's worker alone. It is
//! never logged: nothing here implements `Debug`.

mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use stateward_core::kind::Kind;
use stateward_mysql::agent::TOKEN_KEY;
use stateward_mysql::api::SIZES;
use stateward_mysql::intent::Intent;
use stateward_mysql::kind::MySQLClusters;
use stateward_mysql::names::{self, ACCOUNT_CLONE, ACCOUNT_OPERATOR};
use stateward_mysql::world::{Ordinal, Secrets, Taken};
use stateward_runtime::secrets::{KIND, look};
use stateward_runtime::{Key, Runtime};
pub(crate) use write::{Writer, discard_old, ensure, prepare_rotation, publish_rotation};

use crate::caches::{Caches, is_owned};

/// Keys of `NAME-root` and `NAME-app`.
pub(crate) const USERNAME: &str = "username";
/// The same.
pub(crate) const PASSWORD: &str = "password";
/// Keys of `NAME-app`.
pub(crate) const APP_KEYS: [&str; 6] = [USERNAME, PASSWORD, "host", "port", "database", "uri"];
/// What a password is kept under in `NAME-internal` while it is not valid everywhere yet, or still valid.
pub(crate) const NEXT: &str = "next.";
/// The same for the one before.
pub(crate) const OLD: &str = "old.";
/// The account of root, in `NAME-internal` during a rotation.
pub(crate) const ROOT: &str = "root";
/// The account of the application, in `NAME-internal` during a rotation: its name is the user's to choose.
pub(crate) const APP: &str = "app";

/// The accounts of Stateward itself: the keys of `NAME-internal`, beside the token of agents.
pub(crate) fn own_accounts() -> Vec<String> {
    let members = 0..u32::try_from(*SIZES.end()).unwrap_or(0);
    let replication = members.map(|member| names::replication_account(Ordinal(member)));
    [ACCOUNT_OPERATOR.to_owned(), ACCOUNT_CLONE.to_owned()]
        .into_iter()
        .chain(replication)
        .collect()
}

/// What a Secret holds.
pub(crate) type Content = BTreeMap<String, ByteString>;

/// A Secret as it was read.
#[derive(Clone)]
pub(crate) struct Read {
    pub(crate) version: String,
    pub(crate) meta: Arc<ObjectMeta>,
    pub(crate) content: Arc<Content>,
}

impl Read {
    /// A value as text.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        text(&self.content, key)
    }
}

fn text(content: &Content, key: &str) -> Option<String> {
    let value = content.get(key).filter(|value| !value.0.is_empty())?;
    String::from_utf8(value.0.clone()).ok()
}

/// What is known of a Secret by its name.
pub(crate) enum Found {
    /// It is this cluster's.
    Ours(Read),
    /// It is not there, or goes with an earlier cluster.
    Free,
    /// Somebody else's has its name.
    Theirs,
}

impl Found {
    /// It, if it is ours.
    pub(crate) fn ours(&self) -> Option<&Read> {
        match self {
            Self::Ours(read) => Some(read),
            Self::Free | Self::Theirs => None,
        }
    }
}

/// What a worker has read, by name.
#[derive(Default)]
pub(crate) struct Reader(BTreeMap<String, Read>);

impl Reader {
    /// A Secret that only Stateward writes.
    pub(crate) async fn own(
        &mut self,
        runtime: &Runtime,
        caches: &Caches,
        cluster: &Key,
        uid: &str,
        name: &str,
    ) -> kube::Result<Found> {
        let key = Key::new(cluster.namespace.clone(), name);
        runtime
            .workers
            .uses((MySQLClusters::NAME, cluster), (KIND, key.clone()));
        let seen = match caches.secrets.get(&key) {
            Some(seen) => Some(seen.metadata.clone()),
            // One without our labels is somebody else's, or was not seen yet.
            None => look(runtime, &key).await?.map(|seen| seen.metadata.clone()),
        };
        let Some(seen) = seen else {
            self.0.remove(name);
            return Ok(Found::Free);
        };
        if !is_owned(&seen, uid) {
            let leaves = seen.deletion_timestamp.is_some() || seen.owner_references.iter().flatten().next().is_some();
            return Ok(if leaves { Found::Free } else { Found::Theirs });
        }
        let read = self.read(runtime, &key, &seen).await?;
        Ok(read.map_or(Found::Free, Found::Ours))
    }

    /// A Secret of the user.
    pub(crate) async fn users(&mut self, runtime: &Runtime, cluster: &Key, name: &str) -> kube::Result<Option<Read>> {
        let key = Key::new(cluster.namespace.clone(), name);
        runtime
            .workers
            .uses((MySQLClusters::NAME, cluster), (KIND, key.clone()));
        match look(runtime, &key).await? {
            Some(seen) => self.read(runtime, &key, &seen.metadata).await,
            None => Ok(None),
        }
    }

    async fn read(&mut self, runtime: &Runtime, key: &Key, seen: &ObjectMeta) -> kube::Result<Option<Read>> {
        let version = seen.resource_version.clone().unwrap_or_default();
        if let Some(read) = self.0.get(&key.name)
            && read.version == version
        {
            return Ok(Some(read.clone()));
        }
        let api = runtime.api::<Secret>(&key.namespace);
        let Some(secret) = api.get_opt(&key.name).await?.filter(|now| now.metadata.uid == seen.uid) else {
            runtime.secrets.forget(key);
            self.0.remove(&key.name);
            return Ok(None);
        };
        let read = Read {
            version,
            meta: Arc::new(secret.metadata),
            content: Arc::new(secret.data.unwrap_or_default()),
        };
        self.0.insert(key.name.clone(), read.clone());
        Ok(Some(read))
    }
}

/// The passwords that a worker uses.
#[derive(Clone)]
pub(crate) struct Passwords {
    internal: Read,
    /// Of the application's account.
    pub(crate) app: Option<Arc<str>>,
}

impl Passwords {
    /// The password of an account of Stateward's.
    pub(crate) fn of(&self, account: &str) -> Option<Arc<str>> {
        self.internal.text(account).map(Into::into)
    }

    /// The other password that may be valid: the next one, or the old one.
    pub(crate) fn other(&self, account: &str) -> Option<Arc<str>> {
        let next = self.internal.text(&format!("{NEXT}{account}"));
        next.or_else(|| self.internal.text(&format!("{OLD}{account}")))
            .map(Into::into)
    }

    /// The token of agents.
    pub(crate) fn token(&self) -> Option<Arc<str>> {
        self.of(TOKEN_KEY)
    }
}

/// What was read of a cluster's Secrets.
#[derive(Default)]
pub(crate) struct Judged {
    pub(crate) secrets: Secrets,
    pub(crate) taken: Option<Taken>,
    pub(crate) passwords: Option<Passwords>,
}

/// Reads the Secrets with passwords.
pub(crate) async fn judge(
    reader: &mut Reader,
    runtime: &Runtime,
    caches: &Caches,
    cluster: &Key,
    intent: &Intent,
) -> kube::Result<Judged> {
    let uid = intent.uid.0.as_str();
    let mut judged = Judged::default();
    let name = cluster.name.as_str();
    let internal = reader
        .own(runtime, caches, cluster, uid, &names::internal_secret(name))
        .await?;
    let root = reader
        .own(runtime, caches, cluster, uid, &names::root_secret(name))
        .await?;
    let app = reader
        .own(runtime, caches, cluster, uid, &names::app_secret(name))
        .await?;
    for (found, secret) in [
        (&internal, names::internal_secret(name)),
        (&root, names::root_secret(name)),
        (&app, names::app_secret(name)),
    ] {
        if matches!(found, Found::Theirs) {
            judged.taken = Some(Taken::Name(format!("the Secret {secret}")));
        }
    }
    let mut own_password = None;
    if let Some(theirs) = &intent.app_secret {
        let read = reader.users(runtime, cluster, theirs).await?;
        own_password = read.as_ref().and_then(|read| read.text(PASSWORD));
        if own_password.is_none() {
            let what = if read.is_some() {
                "lacks the key password"
            } else {
                "is not there"
            };
            let message =
                format!("the Secret {theirs} that auth.appSecret names {what}: create it with the key password");
            judged.taken = Some(Taken::Missing(message));
        }
    }
    let has = |found: &Found, keys: &[String]| {
        found
            .ours()
            .is_some_and(|read| keys.iter().all(|key| read.text(key).is_some()))
    };
    let texts = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let mut internal_keys = own_accounts();
    internal_keys.push(TOKEN_KEY.to_owned());
    let complete =
        has(&internal, &internal_keys) && has(&root, &texts(&[USERNAME, PASSWORD])) && has(&app, &texts(&APP_KEYS));
    let rotation = internal.ours().and_then(|read| {
        let annotations = read.meta.annotations.as_ref()?;
        annotations.get(names::ANNOTATION_ROTATE).cloned()
    });
    judged.secrets = Secrets {
        complete,
        rotation: rotation.unwrap_or_default(),
    };
    judged.passwords = internal.ours().map(|read| Passwords {
        internal: read.clone(),
        app: own_password.or_else(|| app.ours()?.text(PASSWORD)).map(Into::into),
    });
    Ok(judged)
}
