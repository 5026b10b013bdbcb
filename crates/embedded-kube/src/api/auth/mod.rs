//! Who asks, and whether they may.

use std::sync::Arc;

use http::{HeaderMap, header};
use serde_json::Value;

use super::errors::{Result, Status};
use super::request::RequestInfo;
use super::server::{Server, header_text};
use super::store::Store;

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: serde_json::Map<String, Value>,
}

/// The group that may do anything.
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
}

/// Knows the secrets that tell who asks.
pub(crate) struct Authenticator {
    ca: String,
    admin_token: String,
    #[allow(dead_code)]
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

    /// The user behind a request: its connection's, or its bearer token's.
    pub(crate) fn authenticate(
        &self,
        _store: &Store,
        headers: &HeaderMap,
        peer: Option<Arc<User>>,
    ) -> Result<Arc<User>> {
        if let Some(peer) = peer {
            return Ok(peer);
        }
        let token = header_text(headers, &header::AUTHORIZATION)
            .strip_prefix("Bearer ")
            .unwrap_or_default()
            .trim();
        if !token.is_empty() && token == self.admin_token {
            return Ok(Arc::new(User::admin()));
        }
        Err(Status::unauthorized())
    }
}

/// Refuses what the user may not do.
pub(crate) fn authorize(_server: &Arc<Server>, user: &User, _info: &RequestInfo) -> Result<()> {
    if user.is_master() {
        return Ok(());
    }
    Err(Status::new(403, "Forbidden", "forbidden"))
}
