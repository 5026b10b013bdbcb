//! Keys and certificates of one instance, stored in its folder: a CA, the administrator's client certificate and token,
//! and the key that signs service account tokens. The server's own certificate is created at every start.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use rand::RngCore;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

#[derive(Debug, thiserror::Error)]
pub(crate) enum PkiError {
    #[error("cannot keep keys in {0}: {1}")]
    Io(PathBuf, std::io::Error),
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("the stored keys cannot be used: {0}")]
    Tls(String),
}

/// A certificate with its key, both PEM.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) struct Pki {
    pub(crate) ca: String,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) admin: Identity,
    pub(crate) admin_token: String,
    pub(crate) token_key: Vec<u8>,
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(PkiError::Io(path.to_owned(), e)),
    }
}

/// Writes a secret atomically: after a crash there is either nothing or all of it.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    let failed = |e| PkiError::Io(path.to_owned(), e);
    let half = path.with_extension("part");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&half)
        .map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    std::fs::rename(&half, path).map_err(failed)
}

fn random_token() -> String {
    let mut bytes = [0u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads a secret, and creates it on first use.
fn kept(path: &Path, make: impl FnOnce() -> String) -> Result<String, PkiError> {
    if let Some(text) = read(path)? {
        return Ok(text);
    }
    let text = make();
    write_private(path, &text)?;
    Ok(text)
}

impl Pki {
    pub(crate) fn open(folder: &Path) -> Result<Self, PkiError> {
        std::fs::create_dir_all(folder).map_err(|e| PkiError::Io(folder.to_owned(), e))?;
        let (ca_file, key_file) = (folder.join("ca.crt"), folder.join("ca.key"));
        let (ca, key) = match (read(&ca_file)?, read(&key_file)?) {
            (Some(ca), Some(key)) => (ca, KeyPair::from_pem(&key)?),
            _ => {
                let key = KeyPair::generate()?;
                let ca = ca_params().self_signed(&key)?.pem();
                write_private(&key_file, &key.serialize_pem())?;
                write_private(&ca_file, &ca)?;
                (ca, key)
            }
        };
        let issuer = Issuer::from_ca_cert_pem(&ca, key)?;
        let admin_file = folder.join("admin.crt");
        let admin = match (read(&admin_file)?, read(&folder.join("admin.key"))?) {
            (Some(certificate), Some(key)) => Identity { certificate, key },
            _ => {
                let admin = issue(&issuer, "kubernetes-admin", &["system:masters"], &[])?;
                write_private(&folder.join("admin.key"), &admin.key)?;
                write_private(&admin_file, &admin.certificate)?;
                admin
            }
        };
        let admin_token = kept(&folder.join("admin.token"), random_token)?;
        let token_key = kept(&folder.join("tokens.key"), random_token)?.into_bytes();
        Ok(Self {
            ca,
            issuer,
            admin,
            admin_token,
            token_key,
        })
    }

    /// A client certificate: user as common name, groups as organizations.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity, PkiError> {
        issue(&self.issuer, user, groups, &[])
    }

    /// The listener's configuration, with a fresh certificate for these names and addresses.
    pub(crate) fn server(&self, names: &[String]) -> Result<rustls::ServerConfig, PkiError> {
        let tls = |e: &dyn std::fmt::Display| PkiError::Tls(e.to_string());
        let identity = issue(&self.issuer, "kube-apiserver", &[], names)?;
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).map_err(|e| tls(&e))?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|e| tls(&e))?;
        let ca = CertificateDer::from_pem_slice(self.ca.as_bytes()).map_err(|e| tls(&e))?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca).map_err(|e| tls(&e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|e| tls(&e))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| tls(&e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)
            .map_err(|e| tls(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "embedded-kube-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    params
}

fn issue(
    issuer: &Issuer<'static, KeyPair>,
    name: &str,
    groups: &[&str],
    names: &[String],
) -> Result<Identity, PkiError> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name = DistinguishedName::new();
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match names {
        [] => ExtendedKeyUsagePurpose::ClientAuth,
        _ => ExtendedKeyUsagePurpose::ServerAuth,
    }];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    Ok(Identity {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}
