//! Authentication and authorization.

pub(crate) mod rbac;
pub(crate) mod tokens;

use std::sync::Arc;

use http::{HeaderMap, header};
use serde_json::Value;

use super::errors::{Result, Status};
use super::request::RequestInfo;
use super::server::{Server, header_text};
use super::store::Store;

/// The user of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: serde_json::Map<String, Value>,
}

/// The group with all permissions.
const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";

impl User {
    pub(crate) fn new(name: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|g| g.to_string()).collect();
        if !groups.iter().any(|g| g == AUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        Self {
            name: name.to_owned(),
            groups,
            ..Self::default()
        }
    }

    pub(crate) fn admin() -> Self {
        Self::new("kubernetes-admin", &[MASTERS])
    }

    pub(crate) fn service_account(namespace: &str, name: &str) -> Self {
        Self::new(
            &format!("system:serviceaccount:{namespace}:{name}"),
            &["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")],
        )
    }

    /// Common name and organizations of a client certificate that the TLS layer has verified.
    pub(crate) fn from_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?;
        let groups: Vec<&str> = subject.iter_organization().filter_map(|o| o.as_str().ok()).collect();
        Some(Self::new(name, &groups))
    }

    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|g| g == MASTERS)
    }

    /// In the form of `TokenReview` and `SelfSubjectReview`.
    pub(crate) fn to_value(&self) -> Value {
        let mut value = serde_json::json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            value["uid"] = self.uid.clone().into();
        }
        if !self.extra.is_empty() {
            value["extra"] = self.extra.clone().into();
        }
        value
    }
}

/// The secrets for authentication.
pub(crate) struct Authenticator {
    ca: String,
    admin_token: String,
    token_key: Vec<u8>,
}

impl Authenticator {
    pub(crate) fn new(ca: String, admin_token: String, token_key: Vec<u8>) -> Self {
        Self {
            ca,
            admin_token,
            token_key,
        }
    }

    /// The CA that clients and pods trust.
    pub(crate) fn ca(&self) -> &str {
        &self.ca
    }

    pub(crate) fn sign(&self, claims: &tokens::Claims) -> String {
        tokens::sign(&self.token_key, claims)
    }

    /// The user of a bearer token.
    pub(crate) fn token_user(&self, store: &Store, token: &str) -> Option<(User, Vec<String>)> {
        if token == self.admin_token {
            return Some((User::admin(), vec![tokens::ISSUER.into()]));
        }
        tokens::user(&self.token_key, store, token).map(|(user, claims)| (user, claims.aud))
    }

    /// The user of a request: from its connection or its bearer token, or the user that it impersonates.
    pub(crate) fn authenticate(
        &self,
        store: &Store,
        headers: &HeaderMap,
        peer: Option<Arc<User>>,
    ) -> Result<Arc<User>> {
        let user = match peer {
            Some(peer) => peer,
            None => {
                let sent = header_text(headers, &header::AUTHORIZATION);
                let token = sent
                    .strip_prefix("Bearer ")
                    .or(sent.strip_prefix("bearer "))
                    .unwrap_or_default()
                    .trim();
                let (user, audiences) = self.token_user(store, token).ok_or_else(Status::unauthorized)?;
                // A token for another audience is not valid for this server.
                if !audiences.iter().any(|a| a == tokens::ISSUER) {
                    return Err(Status::unauthorized());
                }
                Arc::new(user)
            }
        };
        impersonate(store, headers, user)
    }
}

/// `kubectl --as`: acts as another user, where RBAC allows impersonation.
fn impersonate(store: &Store, headers: &HeaderMap, user: Arc<User>) -> Result<Arc<User>> {
    let Some(name) = headers
        .get("impersonate-user")
        .and_then(|v| v.to_str().ok())
        .filter(|n| !n.is_empty())
    else {
        return Ok(user);
    };
    let groups: Vec<&str> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|v| v.to_str().ok())
        .filter(|g| !g.is_empty())
        .collect();
    let snapshot = store.snapshot();
    let account = name
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'));
    let mut wanted = vec![match account {
        Some((namespace, name)) => ("serviceaccounts", namespace, name),
        None => ("users", "", name),
    }];
    wanted.extend(groups.iter().map(|group| ("groups", "", *group)));
    for (resource, namespace, name) in wanted {
        if !rbac::may(&snapshot, &user, "impersonate", "", resource, "", namespace, name) {
            let place = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {namespace:?}")
            };
            return Err(Status::new(
                403,
                "Forbidden",
                format!(
                    "{resource} {name:?} is forbidden: User {:?} cannot impersonate resource {resource:?} in API group \
                     \"\" {place}",
                    user.name
                ),
            ));
        }
    }
    Ok(Arc::new(match account {
        Some((namespace, name)) if groups.is_empty() => User::service_account(namespace, name),
        _ => User::new(name, &groups),
    }))
}

/// Denies what the user is not allowed to do.
pub(crate) fn authorize(server: &Arc<Server>, user: &User, info: &RequestInfo) -> Result<()> {
    if user.is_master() {
        return Ok(());
    }
    let snapshot = server.store.snapshot();
    let Some(path) = &info.resource else {
        if rbac::may_use_path(&snapshot, user, info.verb, &info.path) {
            return Ok(());
        }
        let text = format!(
            "forbidden: User {:?} cannot {} path {:?}",
            user.name, info.verb, info.path
        );
        return Err(Status::new(403, "Forbidden", text));
    };
    if rbac::may(
        &snapshot,
        user,
        info.verb,
        &path.group,
        &path.plural,
        &path.subresource,
        &path.namespace,
        &path.name,
    ) {
        return Ok(());
    }
    let what = match path.subresource.as_str() {
        "" => path.plural.clone(),
        sub => format!("{}/{sub}", path.plural),
    };
    let place = match path.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let qualified = match path.group.as_str() {
        "" => path.plural.clone(),
        group => format!("{}.{group}", path.plural),
    };
    let subject = match path.name.as_str() {
        "" => qualified,
        name => format!("{qualified} {name:?}"),
    };
    let text = format!(
        "{subject} is forbidden: User {:?} cannot {} resource {what:?} in API group {:?} {place}",
        user.name, info.verb, path.group
    );
    let mut status = Status::new(403, "Forbidden", text);
    let mut details = serde_json::json!({"kind": path.plural});
    if !path.name.is_empty() {
        details["name"] = path.name.clone().into();
    }
    if !path.group.is_empty() {
        details["group"] = path.group.clone().into();
    }
    status.details = Some(details);
    Err(status)
}
