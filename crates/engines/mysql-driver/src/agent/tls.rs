//! The certificate that the agent presents: mysqld's own, read again when the Secret changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use stateward_mysql::layout;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// The files cannot be read.
    #[error("cannot read the certificate: {0}")]
    Read(#[from] io::Error),
    /// They are not PEM.
    #[error("the certificate is not as expected: {0}")]
    Pem(#[from] rustls_pki_types::pem::Error),
    /// Certificate and key cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

/// The certificate in a folder.
pub(super) struct Certificate {
    folder: PathBuf,
    loaded: Mutex<Option<(SystemTime, Arc<ServerConfig>)>>,
}

impl Certificate {
    /// `None`: the cluster has no TLS.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let certificate = Self {
            folder: folder.to_owned(),
            loaded: Mutex::new(None),
        };
        certificate.folder.exists().then_some(certificate)
    }

    /// What a connection uses that is made now.
    pub(super) fn config(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let changed = fs::metadata(self.folder.join(layout::TLS_CERTIFICATE))?.modified()?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, config)) = &*loaded
            && *of == changed
        {
            return Ok(config.clone());
        }
        let config = Arc::new(self.read()?);
        *loaded = Some((changed, config.clone()));
        Ok(config)
    }

    fn read(&self) -> Result<ServerConfig, CertificateError> {
        let chain = CertificateDer::pem_file_iter(self.folder.join(layout::TLS_CERTIFICATE))?;
        let chain = chain.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(self.folder.join(layout::TLS_KEY))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(config)
    }
}
