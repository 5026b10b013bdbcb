//! How a member is dialled: an address, the certificates, and the name that its certificate must carry.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::client::error::Error;
use crate::client::verify::Verifier;

/// Why there is no connection: callers tell by this text whether anything listens.
const NOT_ACCEPTED: &str = "did not accept a connection in time";
const NO_SESSION: &str = "accepted a connection and did not answer the TLS handshake in time";

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
    /// The last attempt to connect got as far as a TCP connection.
    is_accepted: Arc<AtomicBool>,
    alert: Alert,
}

/// What TLS reported on a connection after the handshake. With TLS 1.3, a server rejects the client's certificate only then, and
/// the protocol above reports that the connection was closed.
type Alert = Arc<Mutex<Option<String>>>;

/// Keeps what TLS reports instead of data.
pub(crate) struct Watched {
    alert: Alert,
    has_data: bool,
}

impl Watched {
    fn new(alert: Alert) -> Self {
        Self { alert, has_data: false }
    }

    fn set(&self, alert: Option<String>) {
        *self.alert.lock().unwrap_or_else(PoisonError::into_inner) = alert;
    }

    fn read(&mut self, result: &std::io::Result<()>) {
        match result {
            Err(error) => {
                if let Some(why) = crate::client::error::tls_failure(error) {
                    self.set(Some(why));
                }
            }
            Ok(()) if !self.has_data => {
                self.has_data = true;
                self.set(None);
            }
            Ok(()) => {}
        }
    }

    /// A server that rejects a certificate sends its alert and closes the connection. The next write may fail before the alert was
    /// read, and whoever writes does not read any more then.
    fn written<T>(&mut self, stream: &mut TlsStream, cx: &mut Context<'_>, result: &Poll<std::io::Result<T>>) {
        if self.has_data || !matches!(result, Poll::Ready(Err(_))) {
            return;
        }
        let mut byte = [0];
        if let Poll::Ready(read) = Pin::new(stream).poll_read(cx, &mut ReadBuf::new(&mut byte)) {
            self.read(&read);
        }
    }
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
        Ok(Self {
            address,
            tls,
            patience,
            is_accepted: Arc::default(),
            alert: Arc::default(),
        })
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

    /// How a call failed that got no reply in time, or whose connection failed: by whether there is a connection at all.
    pub(crate) fn failed(&self, error: Error) -> Error {
        let is_accepted = self.is_accepted.load(Ordering::Relaxed);
        match error {
            Error::Unreachable(why) if is_accepted => {
                let alert = self.alert.lock().unwrap_or_else(PoisonError::into_inner).clone();
                alert.map_or(Error::Broken(why), Error::Handshake)
            }
            Error::TimedOut(_) if !is_accepted => Error::Unreachable(format!("{} {NOT_ACCEPTED}", self.address)),
            error => error,
        }
    }

    pub(crate) async fn connect(&self) -> std::io::Result<TokioIo<Stream>> {
        // A channel connects again by itself before the call has failed that used the last connection: what is known of that
        // one stays until there is something new to know.
        let mut is_accepted = false;
        let dial = async {
            let tcp = TcpStream::connect(self.address).await?;
            is_accepted = true;
            self.is_accepted.store(true, Ordering::Relaxed);
            tcp.set_nodelay(true)?;
            match &self.tls {
                Some((config, name)) => {
                    let connector = TlsConnector::from(config.clone());
                    let tls = connector.connect(name.clone(), tcp).await?;
                    Ok(TokioIo::new(Stream::Tls(
                        Box::new(tls),
                        Watched::new(self.alert.clone()),
                    )))
                }
                None => Ok(TokioIo::new(Stream::Plain(tcp))),
            }
        };
        let connected = tokio::time::timeout(self.patience, dial).await;
        if !is_accepted {
            self.is_accepted.store(false, Ordering::Relaxed);
        }
        connected.unwrap_or_else(|_| {
            let what = if is_accepted { NO_SESSION } else { NOT_ACCEPTED };
            let message = format!("{} {what}", self.address);
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message))
        })
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
    Tls(Box<TlsStream>, Watched),
}

type TlsStream = tokio_rustls::client::TlsStream<TcpStream>;

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
                Self::Tls(stream, watched) => {
                    let before = buffer.filled().len();
                    let read = Pin::new(stream).poll_read(cx, buffer);
                    if let Poll::Ready(result) = &read
                        && (result.is_err() || buffer.filled().len() > before)
                    {
                        watched.read(result);
                    }
                    read
                }
            }
        }
    }

    impl AsyncWrite for Stream {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
                Self::Tls(stream, watched) => {
                    let written = Pin::new(&mut *stream).poll_write(cx, bytes);
                    watched.written(stream, cx, &written);
                    written
                }
            }
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
                Self::Tls(stream, watched) => {
                    let flushed = Pin::new(&mut *stream).poll_flush(cx);
                    watched.written(stream, cx, &flushed);
                    flushed
                }
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
                Self::Tls(stream, _) => Pin::new(stream).poll_shutdown(cx),
            }
        }
    }
}
