//! `spec.TLS`: where certificates come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use stateward_core::lenient::{empty_as_none, empty_object_as_none, is_default, null_as_default};

/// Where certificates come from: one of static, auto, certManager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsPolicy {
    /// From Secrets that you keep.
    #[serde(rename = "static", default, deserialize_with = "empty_object_as_none")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub static_: Option<StaticTls>,
    /// Issued and rotated by Stateward; `auto: {}` is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoTls>,
    /// Issued and rotated by cert-manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_manager: Option<CertManagerTls>,
}

/// Certificates from Secrets, with the keys of the old operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticTls {
    /// Secrets of the members.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub member: Option<StaticMemberTls>,
    /// Secret with `etcd-client.crt`, `etcd-client.key` and `etcd-client-ca.crt`, with which Stateward itself connects.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub operator_secret: Option<String>,
    /// After `auto` or `certManager`: how long clients are left to read their Secret anew at each step from the old certificate
    /// authority to the one of these Secrets. Not set: 120.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub overlap_seconds: Option<i64>,
}

/// Secrets of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticMemberTls {
    /// Secret with `peer.crt`, `peer.key` and `peer-ca.crt`; certificate for `*.<cluster>.<namespace>.svc` and
    /// `*.<cluster>.<namespace>.svc.cluster.local`.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub peer_secret: Option<String>,
    /// Secret with `server.crt`, `server.key` and `server-ca.crt`; certificate for `*.<cluster>.<namespace>.svc`,
    /// `<cluster>-client.<namespace>.svc` and `localhost`.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub server_secret: Option<String>,
}

/// Certificates that Stateward issues and rotates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoTls {
    /// Secret of type kubernetes.io/tls with a CA of your own to issue from. Not set: one is made.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub ca_secret: Option<String>,
    /// Days for which a certificate is valid; it is renewed after two thirds. Not set: 90.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub validity_days: Option<i64>,
    /// How long clients are left to read their Secret anew at each step when the certificate authority changes. Not set: 120.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub overlap_seconds: Option<i64>,
    /// Further DNS names in the server certificate, for clients from outside.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub dns_names: Vec<String>,
    /// IP addresses in the server certificate, for clients from outside.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ip_addresses: Vec<String>,
}

/// Certificates that cert-manager issues and rotates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertManagerTls {
    /// The issuer of all certificates. It must be one with a CA, as clients and peers are verified.
    #[serde(default, deserialize_with = "null_as_default")]
    pub issuer_ref: IssuerRef,
    /// Another issuer for the certificates between members.
    #[serde(
        default,
        deserialize_with = "empty_object_as_none",
        skip_serializing_if = "Option::is_none"
    )]
    pub peer_issuer_ref: Option<IssuerRef>,
    /// How long certificates are valid, as "2160h". Not set: the default of cert-manager.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// How long before their end they are renewed, as "360h". Not set: the default of cert-manager.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<String>,
    /// How long clients are left to read their Secret anew at each step when the certificate authority changes. Not set: 120.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub overlap_seconds: Option<i64>,
    /// Further DNS names in the server certificate, for clients from outside.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub dns_names: Vec<String>,
    /// IP addresses in the server certificate, for clients from outside.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub ip_addresses: Vec<String>,
}

/// An issuer of cert-manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuerRef {
    /// Its name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// Issuer (default) or ClusterIssuer.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its API group. Not set: cert-manager.io.
    #[serde(default, deserialize_with = "empty_as_none", skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The TLS that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls<'a> {
    /// None.
    Off,
    /// From Secrets that the user keeps and members mount.
    Static(&'a StaticTls),
    /// From Secrets that the user keeps and Stateward hands out, since members mount the Secrets that it writes.
    Copied(&'a StaticTls),
    /// Issued by Stateward.
    Auto(&'a AutoTls),
    /// Issued by cert-manager.
    CertManager(&'a CertManagerTls),
}

impl TlsPolicy {
    /// The one that is set; the schema refuses two. Static with no Secret at all is none.
    pub fn mode(&self) -> Tls<'_> {
        match self {
            Self { auto: Some(auto), .. } => Tls::Auto(auto),
            Self {
                cert_manager: Some(cert_manager),
                ..
            } => Tls::CertManager(cert_manager),
            Self {
                static_: Some(secrets), ..
            } if secrets.member.is_some() || secrets.operator_secret.is_some() => Tls::Static(secrets),
            _ => Tls::Off,
        }
    }
}

impl StaticTls {
    /// The Secret for the traffic between members.
    pub fn peer_secret(&self) -> Option<&str> {
        self.member.as_ref().and_then(|member| member.peer_secret.as_deref())
    }

    /// The Secret for the traffic with clients.
    pub fn server_secret(&self) -> Option<&str> {
        self.member.as_ref().and_then(|member| member.server_secret.as_deref())
    }
}

impl Tls<'_> {
    /// Whether members talk to each other with TLS.
    pub fn peers(&self) -> bool {
        match self {
            Self::Off => false,
            Self::Static(secrets) => secrets.peer_secret().is_some(),
            Self::Copied(_) | Self::Auto(_) | Self::CertManager(_) => true,
        }
    }

    /// Whether members talk to clients with TLS.
    pub fn clients(&self) -> bool {
        match self {
            Self::Off => false,
            Self::Static(secrets) => secrets.server_secret().is_some(),
            Self::Copied(_) | Self::Auto(_) | Self::CertManager(_) => true,
        }
    }
}
