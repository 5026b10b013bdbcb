//! Writing Secrets: created once, completed, and drawn anew in a rotation. Each write rests on the version that was read.
//!
//! # A rotation
//! The next passwords are in `NAME-internal` before any server knows them; then all accounts get them in one statement, which
//! MySQL executes as a whole or not at all; then they are published. Whatever ends this in between, it is taken up where it was.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use rand::Rng;
use rand::distr::Alphanumeric;
use stateward_core::names::MANAGER;
use stateward_mysql::agent::TOKEN_KEY;
use stateward_mysql::intent::Intent;
use stateward_mysql::{manifests, names};
use stateward_runtime::objects::is_code;
use stateward_runtime::secrets::kept;
use stateward_runtime::{Failure, Key, Runtime};

use super::{APP, Content, NEXT, OLD, PASSWORD, ROOT, Reader, USERNAME, own_accounts, text};
use crate::caches::{Caches, is_owned};

/// Letters and digits of a password: 190 bits.
const LENGTH: usize = 32;

type Annotations = BTreeMap<String, String>;

/// What writing a Secret needs.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) caches: &'a Caches,
    pub(crate) cluster: &'a Key,
    pub(crate) intent: &'a Intent,
}

fn draw() -> String {
    let mut random = rand::rng();
    (0..LENGTH).map(|_| char::from(random.sample(Alphanumeric))).collect()
}

fn set(content: &mut Content, key: &str, value: impl Into<String>) {
    content.insert(key.to_owned(), ByteString(value.into().into_bytes()));
}

fn set_if_missing(content: &mut Content, key: &str, value: impl FnOnce() -> String) {
    if text(content, key).is_none() {
        set(content, key, value());
    }
}

/// Characters of a URI that stand for themselves.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

impl Writer<'_> {
    fn api(&self) -> kube::Api<Secret> {
        self.runtime.api(&self.cluster.namespace)
    }

    /// Reads a Secret of this name that is ours or not there.
    async fn there(&self, name: &str) -> Result<Option<Secret>, Failure> {
        match self.api().get_opt(name).await? {
            Some(there) if is_owned(&there.metadata, &self.intent.uid.0) => Ok(Some(there)),
            Some(_) => Err(Failure::NameTaken(format!("the Secret {name}"))),
            None => Ok(None),
        }
    }

    /// Writes a Secret as `change` makes it, if that is another one than before.
    pub(crate) async fn write(
        &self,
        name: &str,
        kind: &str,
        change: impl FnOnce(&mut Content, &mut Annotations),
    ) -> Result<Secret, Failure> {
        let there = self.there(name).await?;
        let is_new = there.is_none();
        let mut secret = there.unwrap_or_else(|| self.empty(name, kind));
        let before = (secret.data.clone(), secret.metadata.annotations.clone());
        let mut content = secret.data.take().unwrap_or_default();
        let mut annotations = secret.metadata.annotations.take().unwrap_or_default();
        change(&mut content, &mut annotations);
        secret.data = Some(content);
        secret.metadata.annotations = Some(annotations);
        if !is_new && before == (secret.data.clone(), secret.metadata.annotations.clone()) {
            return Ok(secret);
        }
        let params = PostParams {
            field_manager: Some(MANAGER.into()),
            ..PostParams::default()
        };
        let written = if is_new {
            self.api().create(&params, &secret).await
        } else {
            self.api().replace(name, &params, &secret).await
        };
        let written = written.map_err(|error| {
            if is_code(&error, 409) {
                Failure::GuardFailed(format!("the Secret {name} has changed meanwhile"))
            } else {
                error.into()
            }
        })?;
        let key = Key::new(self.cluster.namespace.clone(), name);
        self.runtime.secrets.forget(&key);
        self.caches.secrets.put(kept(written.metadata.clone()));
        Ok(written)
    }

    fn empty(&self, name: &str, kind: &str) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.cluster.namespace.clone()),
                labels: Some(names::labels(&self.cluster.name)),
                annotations: Some(BTreeMap::from([(
                    names::ANNOTATION_CLUSTER_UID.to_owned(),
                    self.intent.uid.0.clone(),
                )])),
                owner_references: Some(vec![manifests::owner(self.intent)]),
                ..ObjectMeta::default()
            },
            type_: Some(kind.to_owned()),
            ..Secret::default()
        }
    }

    /// The keys of `NAME-app`.
    fn fill_app(&self, content: &mut Content, password: &str) {
        let (database, host) = (&self.intent.database, self.primary_host());
        set(content, USERNAME, database.user.clone());
        set(content, PASSWORD, password);
        set(content, "host", host.clone());
        set(content, "port", names::PORT.to_string());
        set(content, "database", database.name.clone());
        let uri = format!(
            "mysql://{}:{}@{host}:{}/{}",
            encoded(&database.user),
            encoded(password),
            names::PORT,
            encoded(&database.name)
        );
        set(content, "uri", uri);
    }

    fn primary_host(&self) -> String {
        let service = names::primary_service(&self.cluster.name);
        format!("{service}.{}.svc", self.cluster.namespace)
    }

    /// The password that the user brings for the application's account, if one is named.
    async fn users_password(&self) -> Result<Option<String>, Failure> {
        let Some(name) = &self.intent.app_secret else {
            return Ok(None);
        };
        let mut reader = Reader::default();
        let read = reader.users(self.runtime, self.cluster, name).await?;
        let password = read.and_then(|read| read.text(PASSWORD));
        let missing = || Failure::Failed(format!("the Secret {name} has no key password: add it"));
        Ok(Some(password.ok_or_else(missing)?))
    }
}

const OPAQUE: &str = "Opaque";

/// Creates the Secrets that are missing, and completes those that lack keys.
pub(crate) async fn ensure(writer: Writer<'_>) -> Result<(), Failure> {
    let name = writer.cluster.name.as_str();
    let rotation = &writer.intent.requests.rotate;
    writer
        .write(&names::internal_secret(name), OPAQUE, |content, annotations| {
            let is_new = content.is_empty();
            for account in own_accounts() {
                set_if_missing(content, &account, draw);
            }
            set_if_missing(content, TOKEN_KEY, draw);
            if is_new && !rotation.is_empty() {
                annotations.insert(names::ANNOTATION_ROTATE.to_owned(), rotation.clone());
            }
        })
        .await?;
    writer
        .write(&names::root_secret(name), OPAQUE, |content, _| {
            set(content, USERNAME, "root");
            set_if_missing(content, PASSWORD, draw);
        })
        .await?;
    let theirs = writer.users_password().await?;
    writer
        .write(&names::app_secret(name), OPAQUE, |content, _| {
            let password = theirs.or_else(|| text(content, PASSWORD)).unwrap_or_else(draw);
            writer.fill_app(content, &password);
        })
        .await?;
    Ok(())
}

/// The accounts of which passwords are drawn.
fn rotated(intent: &Intent) -> Vec<String> {
    let mut accounts = own_accounts();
    accounts.push(ROOT.to_owned());
    if intent.app_secret.is_none() {
        accounts.push(APP.to_owned());
    }
    accounts
}

/// Annotation of `NAME-internal`: the rotation that the next passwords are for.
const PREPARED: &str = "stateward.dev/rotation-prepared";

/// Draws the next passwords, unless they were drawn for this rotation. Returns them by account. `None`: it is done already.
pub(crate) async fn prepare_rotation(
    writer: Writer<'_>,
    rotation: &str,
) -> Result<Option<BTreeMap<String, String>>, Failure> {
    let secret = names::internal_secret(&writer.cluster.name);
    let mut done = false;
    let accounts = rotated(writer.intent);
    let written = writer
        .write(&secret, OPAQUE, |content, annotations| {
            done = annotations
                .get(names::ANNOTATION_ROTATE)
                .is_some_and(|known| known == rotation);
            if done || annotations.get(PREPARED).is_some_and(|known| known == rotation) {
                return;
            }
            for account in &accounts {
                set(content, &format!("{NEXT}{account}"), draw());
            }
            annotations.insert(PREPARED.to_owned(), rotation.to_owned());
        })
        .await?;
    if done {
        return Ok(None);
    }
    let content = written.data.unwrap_or_default();
    let next = accounts.into_iter().filter_map(|account| {
        let password = text(&content, &format!("{NEXT}{account}"))?;
        Some((account, password))
    });
    Ok(Some(next.collect()))
}

/// The servers know the next passwords: from now on they are the passwords.
pub(crate) async fn publish_rotation(
    writer: Writer<'_>,
    rotation: &str,
    next: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let name = writer.cluster.name.as_str();
    if let Some(password) = next.get(ROOT) {
        writer
            .write(&names::root_secret(name), OPAQUE, |content, _| {
                set(content, PASSWORD, password.clone())
            })
            .await?;
    }
    if let Some(password) = next.get(APP) {
        writer
            .write(&names::app_secret(name), OPAQUE, |content, _| {
                writer.fill_app(content, password)
            })
            .await?;
    }
    writer
        .write(&names::internal_secret(name), OPAQUE, |content, annotations| {
            for account in own_accounts() {
                let Some(password) = next.get(&account) else { continue };
                if let Some(old) = content.get(&account).cloned() {
                    content.insert(format!("{OLD}{account}"), old);
                }
                set(content, &account, password.clone());
            }
            content.retain(|key, _| !key.starts_with(NEXT));
            annotations.remove(PREPARED);
            annotations.insert(names::ANNOTATION_ROTATE.to_owned(), rotation.to_owned());
        })
        .await?;
    Ok(())
}

/// The old passwords are valid nowhere any more.
pub(crate) async fn discard_old(writer: Writer<'_>) -> Result<(), Failure> {
    let secret = names::internal_secret(&writer.cluster.name);
    let forget = |content: &mut Content, _: &mut Annotations| content.retain(|key, _| !key.starts_with(OLD));
    writer.write(&secret, OPAQUE, forget).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_long_and_differ() {
        let (one, other) = (draw(), draw());
        assert_eq!(one.len(), LENGTH);
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }

    #[test]
    fn a_uri_holds_any_password() {
        assert_eq!(encoded("a:b@c/d é~"), "a%3Ab%40c%2Fd%20%C3%A9~");
    }
}
