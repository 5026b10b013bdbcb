//! The certificate that a listener shows, whoever it is from: evidence of what a member uses, not a way to talk to it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The certificate (DER) that is shown at an address; `None`: nobody answers there, or not with TLS. The handshake may well
/// be refused afterwards: we show none.
pub async fn shown_certificate(address: SocketAddr, patience: Duration) -> Option<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let onlooker = Arc::new(Onlooker {
        provider: provider.clone(),
        seen: Mutex::new(None),
    });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(onlooker.clone())
        .with_no_client_auth();
    let look = async {
        let tcp = TcpStream::connect(address).await?;
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(ServerName::from(address.ip()), tcp).await
    };
    let _ = tokio::time::timeout(patience, look).await;
    let mut seen = onlooker.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    seen.take()
}

/// Looks, and believes nothing: signatures are checked, so that the other side does have the certificate's key.
#[derive(Debug)]
struct Onlooker {
    provider: Arc<CryptoProvider>,
    seen: Mutex<Option<Vec<u8>>>,
}

impl ServerCertVerifier for Onlooker {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *seen = Some(certificate.to_vec());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
