//! How a member is dialled: an address, the certificates, and the name that its certificate must carry.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::client::verify::Verifier;

/// What may be on its way to us at once, for each connection.
const WINDOW: u32 = 1 << 20;

/// How long to wait, for every call.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For an answer.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            request: Duration::from_secs(5),
        }
    }
}

/// Certificates to connect with: made once for a cluster, used for all its members.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be read.
    #[error("the {0} is not a PEM file that can be read: {1}")]
    Pem(&'static str, String),
    /// They do not fit together.
    #[error("the client certificate and its key cannot be used: {0}")]
    Unfit(String),
    /// A name that no certificate can carry.
    #[error("\"{0}\" is not a name that a certificate can carry")]
    Name(String),
}

impl Tls {
    /// From PEM texts: the CA that signs the members' certificates, and our certificate with its key where members ask
    /// for one.
    pub fn new(ca: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        let roots = certificates("CA certificate", ca)?;
        let mut store = rustls::RootCertStore::empty();
        for certificate in &roots {
            store
                .add(certificate.clone())
                .map_err(|error| TlsError::Pem("CA certificate", error.to_string()))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::new(roots, store, provider.clone())
            .map_err(|error| TlsError::Pem("CA certificate", error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unfit(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identity {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| TlsError::Pem("client key", error.to_string()))?;
                builder
                    .with_client_auth_cert(certificates("client certificate", certificate)?, key)
                    .map_err(|error| TlsError::Unfit(error.to_string()))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(TlsError::Pem(what, "it holds no certificate".into())),
        Ok(all) => Ok(all),
        Err(error) => Err(TlsError::Pem(what, error.to_string())),
    }
}

/// Where a member is, and how it is dialled.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) address: SocketAddr,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    patience: Duration,
}

impl Dial {
    pub(crate) fn new(address: SocketAddr, tls: Option<(&Tls, &str)>, patience: Duration) -> Result<Self, TlsError> {
        let tls = match tls {
            Some((tls, name)) => {
                let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
                Some((tls.config.clone(), name))
            }
            None => None,
        };
        Ok(Self { address, tls, patience })
    }

    /// The same member for requests in HTTP/1.1: etcd serves gRPC and plain requests on one port.
    pub(crate) fn for_plain_requests(&self) -> Self {
        let mut plain = self.clone();
        if let Some((config, _)) = &mut plain.tls {
            let mut http1 = ClientConfig::clone(config);
            http1.alpn_protocols = vec![b"http/1.1".to_vec()];
            *config = Arc::new(http1);
        }
        plain
    }

    pub(crate) async fn connect(&self) -> std::io::Result<TokioIo<Stream>> {
        let dial = async {
            let tcp = TcpStream::connect(self.address).await?;
            tcp.set_nodelay(true)?;
            match &self.tls {
                Some((config, name)) => {
                    let connector = TlsConnector::from(config.clone());
                    let tls = connector.connect(name.clone(), tcp).await?;
                    Ok(TokioIo::new(Stream::Tls(Box::new(tls))))
                }
                None => Ok(TokioIo::new(Stream::Plain(tcp))),
            }
        };
        match tokio::time::timeout(self.patience, dial).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!(
                    "{} did not accept a connection within {:?}",
                    self.address, self.patience
                ),
            )),
        }
    }
}

/// A channel that connects at the first call, and again whenever the connection is lost.
pub(crate) fn channel(dial: &Dial) -> Result<Channel, TlsError> {
    // The scheme is plain in both cases: TLS is this connector's own work, and the authority only fills a header.
    let uri = http::Uri::builder()
        .scheme("http")
        .authority(dial.address.to_string())
        .path_and_query("/")
        .build()
        .map_err(|error| TlsError::Name(error.to_string()))?;
    // The default window of 64 KiB holds two messages of a snapshot and makes the sender wait all the time.
    let endpoint = Endpoint::from(uri)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let dial = dial.clone();
    let connector = tower::service_fn(move |_: http::Uri| {
        let dial = dial.clone();
        async move { dial.connect().await }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// Either kind of connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

mod stream {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::Stream;

    impl AsyncRead for Stream {
        fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
                Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
            }
        }
    }

    impl AsyncWrite for Stream {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
                Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            }
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
                Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
                Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            }
        }
    }
}
