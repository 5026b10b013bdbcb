//! Certificates as users create them for `TLS.static`: a CA, and three certificates with the key names of the old
//! operator.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};

/// The three Secrets with one self-signed certificate (`CA:TRUE`) that is both CA and leaf, as users of the old
/// operator have it.
pub(crate) fn one_for_all(cluster: &str, namespace: &str) -> Result<[Value; 3]> {
    let members = format!("*.{cluster}.{namespace}.svc");
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![
        members.clone(),
        format!("{members}.cluster.local"),
        format!("{cluster}-client.{namespace}.svc"),
        "localhost".to_owned(),
    ])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "etcd");
    let (certificate, key) = (params.self_signed(&key)?.pem(), key.serialize_pem());
    let secret = |name: &str, file: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {
                format!("{file}.crt"): certificate, format!("{file}.key"): key, format!("{file}-ca.crt"): certificate,
            },
        })
    };
    Ok([
        secret("etcd-peer-tls", "peer"),
        secret("etcd-server-tls", "server"),
        secret("etcd-client-tls", "etcd-client"),
    ])
}

pub(crate) struct Ca {
    pub(crate) pem: String,
    pub(crate) key: String,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        Ok(Self {
            pem: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Reads it from a Secret.
    pub(crate) fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self> {
        Ok(Self {
            pem: String::from_utf8(certificate.to_vec())?,
            key: String::from_utf8(key.to_vec())?,
        })
    }

    /// A certificate and its key, without names: etcd accepts a certificate with names only from an address that they
    /// resolve to.
    pub(crate) fn sign_nameless(&self) -> Result<(String, String)> {
        self.sign(Vec::new(), false)
    }

    /// Issues a certificate and its key.
    fn sign(&self, names: Vec<String>, server: bool) -> Result<(String, String)> {
        let issuer = Issuer::from_ca_cert_pem(&self.pem, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "e2e");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if server {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
    }

    /// The Secret of a CA that signs for others.
    pub(crate) fn secret(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": self.pem, "tls.key": self.key},
        })
    }

    /// The three Secrets of a cluster, with new certificates of this CA, that trust the given CAs.
    pub(crate) fn secrets(&self, cluster: &str, namespace: &str, trusted: &[&Ca]) -> Result<[Value; 3]> {
        self.secrets_also(cluster, namespace, trusted, &[])
    }

    /// The same, with more names and addresses in the certificates of members.
    pub(crate) fn secrets_also(
        &self,
        cluster: &str,
        namespace: &str,
        trusted: &[&Ca],
        also: &[String],
    ) -> Result<[Value; 3]> {
        let ca: String = trusted.iter().map(|ca| ca.pem.as_str()).collect();
        let members = format!("*.{cluster}.{namespace}.svc");
        let mut peer = vec![members.clone(), format!("{members}.cluster.local")];
        let mut server = vec![
            members,
            format!("{cluster}-client.{namespace}.svc"),
            "localhost".to_owned(),
        ];
        for names in [&mut peer, &mut server] {
            names.extend_from_slice(also);
        }
        self.secrets_for(&ca, peer, server)
    }

    /// The same, with a server certificate that has none of the members' names.
    pub(crate) fn secrets_without_the_names(&self, cluster: &str, namespace: &str) -> Result<[Value; 3]> {
        let members = format!("*.{cluster}.{namespace}.svc");
        let peer = vec![members.clone(), format!("{members}.cluster.local")];
        self.secrets_for(&self.pem, peer, vec!["localhost".to_owned()])
    }

    /// The three Secrets with certificates of these names.
    fn secrets_for(&self, ca: &str, peer: Vec<String>, server: Vec<String>) -> Result<[Value; 3]> {
        let secret = |name: &str, file: &str, names: Vec<String>, server: bool| -> Result<Value> {
            let (certificate, key) = self.sign(names, server)?;
            Ok(json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "stringData": {format!("{file}.crt"): certificate, format!("{file}.key"): key, format!("{file}-ca.crt"): ca},
            }))
        };
        Ok([
            secret("etcd-peer-tls", "peer", peer, true)?,
            secret("etcd-server-tls", "server", server, true)?,
            secret("etcd-client-tls", "etcd-client", vec!["client".to_owned()], false)?,
        ])
    }
}
