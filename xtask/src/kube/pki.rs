//! Keys and certificates of one cluster, created at every start: a CA, the API server's certificate, and for each
//! component a kubeconfig with a client certificate under the name that Kubernetes' own roles expect.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use super::layout::{API_SERVICE, CONTROL, Guest, Run};

/// Creates everything: the folder `pki`, and kubeconfig files beside it.
pub(crate) fn make(run: &Run, nodes: usize, port: u16) -> Result<()> {
    let pki = Pki::new(run, port)?;
    let names = [
        "localhost",
        "127.0.0.1",
        CONTROL,
        API_SERVICE,
        "kubernetes",
        "kubernetes.default",
    ];
    let more = ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
    let names: Vec<_> = names.iter().chain(&more).map(|name| (*name).to_owned()).collect();
    pki.pair("apiserver", "kube-apiserver", None, names)?;
    pki.pair(
        "apiserver-kubelet",
        "kube-apiserver-kubelet-client",
        Some("system:masters"),
        Vec::new(),
    )?;
    let accounts = KeyPair::generate()?;
    private(&run.folder.join("pki/accounts.key"), &accounts.serialize_pem())?;
    fs::write(run.folder.join("pki/accounts.pub"), accounts.public_key_pem())?;

    pki.kubeconfig(&run.kubeconfig(), "kubernetes-admin", Some("system:masters"))?;
    // A user who became root through sudo uses it as themselves.
    let id = |name: &str| std::env::var(name).ok().and_then(|id| id.parse().ok());
    std::os::unix::fs::chown(run.kubeconfig(), id("SUDO_UID"), id("SUDO_GID"))?;
    for (file, user) in [
        ("controller-manager", "system:kube-controller-manager"),
        ("scheduler", "system:kube-scheduler"),
        ("proxy", "system:kube-proxy"),
        ("coredns", "stateward:coredns"),
        ("claims", "stateward:claims"),
    ] {
        pki.kubeconfig(&kubeconfig(run, file), user, None)?;
    }
    for node in Guest::all(nodes).skip(1) {
        let user = format!("system:node:{node}");
        pki.kubeconfig(&kubeconfig(run, &node.to_string()), &user, Some("system:nodes"))?;
    }
    Ok(())
}

pub(crate) fn kubeconfig(run: &Run, component: &str) -> PathBuf {
    run.folder.join("pki").join(format!("{component}.kubeconfig"))
}

struct Pki {
    folder: PathBuf,
    authority: Issuer<'static, KeyPair>,
    authority_pem: String,
    server: String,
    cluster: String,
}

impl Pki {
    fn new(run: &Run, port: u16) -> Result<Self> {
        let folder = run.folder.join("pki");
        fs::create_dir_all(&folder)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "stateward-environment");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let authority_pem = params.self_signed(&key)?.pem();
        fs::write(folder.join("ca.crt"), &authority_pem)?;
        Ok(Self {
            folder,
            authority: Issuer::new(params, key),
            authority_pem,
            server: format!("https://127.0.0.1:{port}"),
            cluster: format!("stateward-{}", run.name),
        })
    }

    /// A certificate and its key as PEM, valid for a client and, if it has names, for a server.
    fn issue(&self, user: &str, group: Option<&str>, names: Vec<String>) -> Result<(String, String)> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.authority)?.pem(), key.serialize_pem()))
    }

    fn pair(&self, file: &str, user: &str, group: Option<&str>, names: Vec<String>) -> Result<()> {
        let (certificate, key) = self.issue(user, group, names)?;
        fs::write(self.folder.join(format!("{file}.crt")), certificate)?;
        private(&self.folder.join(format!("{file}.key")), &key)
    }

    fn kubeconfig(&self, file: &Path, user: &str, group: Option<&str>) -> Result<()> {
        let (certificate, key) = self.issue(user, group, Vec::new())?;
        let (authority, certificate, key) = (
            STANDARD.encode(&self.authority_pem),
            STANDARD.encode(certificate),
            STANDARD.encode(key),
        );
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": self.cluster,
            "clusters": [{
                "name": self.cluster, "cluster": { "server": self.server, "certificate-authority-data": authority },
            }],
            "users": [{ "name": user, "user": { "client-certificate-data": certificate, "client-key-data": key } }],
            "contexts": [{ "name": self.cluster, "context": { "cluster": self.cluster, "user": user } }],
        });
        private(file, &serde_json::to_string_pretty(&config)?)
    }
}

fn private(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text)?;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o600))?)
}
