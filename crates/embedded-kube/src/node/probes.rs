//! Probes and hooks: asking a container whether it has started, is ready, is alive. Dials pod addresses and runs programs
//! inside the container's own sandbox.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::process::{Process, Spawner};
use super::sandbox;
use crate::network::Namespace;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// The running container that is asked.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) spawner: Spawner,
    pub(crate) process: Process,
    pub(crate) user_namespace: bool,
    pub(crate) namespace: Namespace,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) pod_ip: Ipv4Addr,
    pub(crate) container: Container,
}

/// What the probes of a container tell while it runs.
pub(crate) trait Listener {
    fn started(&self, started: bool);
    fn ready(&self, ready: bool);
    /// A probe failed; the text is that of kubelet's `Unhealthy` event.
    fn unhealthy(&self, message: String);
}

/// Asks as long as the container runs. Ends only when it has to be restarted, with the reason.
pub(crate) async fn watch(target: &Target, listener: &impl Listener) -> (Kind, &'static str) {
    if let Some(probe) = &target.container.startup_probe {
        let mut rhythm = Rhythm::new(probe, true);
        rhythm.first().await;
        loop {
            match ask(Kind::Startup, probe, target).await {
                Ok(()) => break,
                Err(message) => {
                    if rhythm.counts() {
                        listener.unhealthy(message);
                        if rhythm.failed() {
                            return (Kind::Startup, "failed startup probe");
                        }
                    }
                }
            }
            rhythm.next().await;
        }
    }
    listener.started(true);
    let readiness = async {
        let Some(probe) = &target.container.readiness_probe else {
            listener.ready(true);
            return std::future::pending().await;
        };
        let mut rhythm = Rhythm::new(probe, true);
        let mut ready = false;
        rhythm.first().await;
        loop {
            match ask(Kind::Readiness, probe, target).await {
                Ok(()) => {
                    if rhythm.succeeded() && !ready {
                        ready = true;
                        listener.ready(true);
                    }
                }
                Err(message) => {
                    if rhythm.counts() {
                        listener.unhealthy(message);
                        if rhythm.failed() && ready {
                            ready = false;
                            listener.ready(false);
                        }
                    }
                }
            }
            rhythm.next().await;
        }
    };
    let liveness = async {
        let Some(probe) = &target.container.liveness_probe else {
            return std::future::pending().await;
        };
        let mut rhythm = Rhythm::new(probe, false);
        rhythm.first().await;
        loop {
            match ask(Kind::Liveness, probe, target).await {
                Ok(()) => {
                    rhythm.succeeded();
                }
                Err(message) => {
                    listener.unhealthy(message);
                    if rhythm.failed() {
                        return (Kind::Liveness, "failed liveness probe");
                    }
                }
            }
            rhythm.next().await;
        }
    };
    tokio::select! { verdict = liveness => verdict, verdict = readiness => verdict }
}

/// When to ask, and when enough answers are the same. A container that has not answered well yet is asked sooner than the
/// period says, so that nobody waits a period for something that took a moment to start; such early failures do not count.
struct Rhythm {
    period: Duration,
    initial_delay: Duration,
    failure_threshold: u32,
    success_threshold: u32,
    failures: u32,
    successes: u32,
    eager: Option<Duration>,
    counted: Option<Instant>,
}

impl Rhythm {
    fn new(probe: &Probe, eager: bool) -> Self {
        let number = |value: Option<i32>, default: u32| value.and_then(|v| u32::try_from(v).ok()).unwrap_or(default);
        let seconds = |value: Option<i32>, default: u32| Duration::from_secs(u64::from(number(value, default)));
        Self {
            period: seconds(probe.period_seconds.filter(|p| *p > 0), 10),
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            failure_threshold: number(probe.failure_threshold, 3).max(1),
            success_threshold: number(probe.success_threshold, 1).max(1),
            failures: 0,
            successes: 0,
            eager: eager.then_some(Duration::from_millis(50)),
            counted: None,
        }
    }

    async fn first(&self) {
        tokio::time::sleep(self.initial_delay).await;
    }

    async fn next(&mut self) {
        let pause = match &mut self.eager {
            Some(pause) => {
                let this = *pause;
                *pause = (*pause * 3 / 2).min(self.period);
                this
            }
            None => self.period,
        };
        tokio::time::sleep(pause).await;
    }

    /// Whether a failure now counts: at most one a period does.
    fn counts(&mut self) -> bool {
        let due = match (self.eager, self.counted) {
            (None, _) => true,
            // The first failure right after the start says only that the program is not that fast.
            (Some(_), None) => {
                self.counted = Some(Instant::now());
                return false;
            }
            (Some(_), Some(last)) => last.elapsed() >= self.period,
        };
        if due {
            self.counted = Some(Instant::now());
        }
        due
    }

    fn failed(&mut self) -> bool {
        self.successes = 0;
        self.failures += 1;
        self.failures >= self.failure_threshold
    }

    fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.successes += 1;
        let enough = self.successes >= self.success_threshold;
        if enough {
            self.eager = None;
        }
        enough
    }
}

async fn ask(kind: Kind, probe: &Probe, target: &Target) -> Result<(), String> {
    let limit = u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1).max(1);
    let asked = async {
        if let Some(action) = &probe.exec {
            exec(action, target).await
        } else if let Some(action) = &probe.http_get {
            http_get(action, target).await
        } else if let Some(action) = &probe.tcp_socket {
            tcp(action, target).await
        } else if let Some(action) = &probe.grpc {
            grpc(action, target).await
        } else {
            Ok(())
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(limit), asked).await;
    let answer = answer.unwrap_or_else(|_| Err(format!("probe timed out after {limit}s")));
    answer.map_err(|reason| format!("{} probe failed: {reason}", kind.name()))
}

/// Runs a `postStart` or `preStop` hook.
pub(crate) async fn hook(handler: &LifecycleHandler, target: &Target) -> Result<(), String> {
    if let Some(action) = &handler.exec {
        exec(action, target).await
    } else if let Some(action) = &handler.http_get {
        http_get(action, target).await
    } else if let Some(action) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
        Ok(())
    } else {
        Ok(())
    }
}

async fn exec(action: &ExecAction, target: &Target) -> Result<(), String> {
    let words: Vec<String> = action.command.iter().flatten().cloned().collect();
    let init = target
        .process
        .ready_sandbox()
        .await
        .ok_or("the container is not running")?;
    let mut command = sandbox::enter(init, target.user_namespace, &target.env, &words);
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let second = writer.try_clone().map_err(|error| error.to_string())?;
    command.stdin(std::process::Stdio::null()).stdout(writer).stderr(second);
    let process = target
        .spawner
        .spawn_helper(command, &target.namespace)
        .await
        .map_err(|error| error.to_string())?;
    let _ended = EndOnDrop(process.clone());
    let code = process.wait().await;
    if code == 0 {
        return Ok(());
    }
    Err(first_bytes(reader).await.trim().to_string()).map_err(|text: String| {
        if text.is_empty() {
            format!("command exited with {code}")
        } else {
            text
        }
    })
}

/// A probe that ran out of time must not leave its program behind.
struct EndOnDrop(Process);
impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.signal_tree(nix::sys::signal::Signal::SIGKILL);
    }
}

async fn first_bytes(reader: std::io::PipeReader) -> String {
    let Ok(mut reader) = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()) else {
        return String::new();
    };
    let mut text = vec![0; 4096];
    let mut used = 0;
    while used < text.len() {
        match tokio::io::AsyncReadExt::read(&mut reader, &mut text[used..]).await {
            Ok(count @ 1..) => used += count,
            _ => break,
        }
    }
    String::from_utf8_lossy(&text[..used]).into_owned()
}

fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_ref() == Some(name))
            .map(|port| port.container_port)
            .or_else(|| name.parse().ok()),
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .ok_or_else(|| format!("couldn't find port {port:?}"))
}

fn host(host: Option<&String>, target: &Target) -> String {
    host.cloned().unwrap_or_else(|| target.pod_ip.to_string())
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let connected = TcpStream::connect((host, port)).await;
    connected.map_err(|error| format!("dial tcp {host}:{port}: connect: {}", plain(&error)))
}

fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_string(),
        _ => error.to_string(),
    }
}

async fn tcp(action: &TCPSocketAction, target: &Target) -> Result<(), String> {
    dial(
        &host(action.host.as_ref(), target),
        port(&action.port, &target.container)?,
    )
    .await
    .map(drop)
}

async fn http_get(action: &HTTPGetAction, target: &Target) -> Result<(), String> {
    let host = host(action.host.as_ref(), target);
    let port = port(&action.port, &target.container)?;
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
    let path = format!(
        "/{}",
        action.path.as_deref().unwrap_or_default().trim_start_matches('/')
    );
    let failed = |reason: &dyn std::fmt::Display| format!("Get \"{scheme}://{host}:{port}{path}\": {reason}");
    let mut request = http::Request::get(&path)
        .header(http::header::HOST, format!("{host}:{port}"))
        .header(http::header::USER_AGENT, "kube-probe/1")
        .header(http::header::ACCEPT, "*/*")
        .header(http::header::CONNECTION, "close");
    for header in action.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    let request = request.body(Full::<Bytes>::default()).map_err(|error| failed(&error))?;
    let stream = dial(&host, port).await.map_err(|error| failed(&error))?;
    let status = if scheme == "https" {
        let name = rustls_pki_types::ServerName::try_from(host.clone()).map_err(|error| failed(&error))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(unverified()));
        let stream = connector.connect(name, stream).await.map_err(|error| failed(&error))?;
        fetch(stream, request).await
    } else {
        fetch(stream, request).await
    };
    let status = status.map_err(|error| failed(&error))?;
    if (200..400).contains(&status.as_u16()) {
        Ok(())
    } else {
        Err(format!("HTTP probe failed with statuscode: {}", status.as_u16()))
    }
}

async fn fetch(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    request: http::Request<Full<Bytes>>,
) -> Result<http::StatusCode, hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    let status = sender.send_request(request).await.map(|response| response.status());
    driving.abort();
    status
}

/// The standard health service of gRPC, spoken by hand: one request with one string in it, one answer with one number.
async fn grpc(action: &GRPCAction, target: &Target) -> Result<(), String> {
    let port = u16::try_from(action.port).map_err(|error| error.to_string())?;
    let stream = dial(&target.pod_ip.to_string(), port).await?;
    let service = action.service.clone().unwrap_or_default();
    let message = prost::Message::encode_to_vec(&HealthRequest { service });
    let size = u32::try_from(message.len()).map_err(|error| error.to_string())?;
    let framed = [&[0][..], &size.to_be_bytes(), &message].concat();
    let request = http::Request::post(format!("http://{}:{port}/grpc.health.v1.Health/Check", target.pod_ip))
        .header(http::header::CONTENT_TYPE, "application/grpc")
        .header(http::header::TE, "trailers")
        .body(Full::new(Bytes::from(framed)))
        .map_err(|error| error.to_string())?;
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let driving = tokio::spawn(connection);
    let answered = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let refused = response
            .headers()
            .get("grpc-status")
            .is_some_and(|status| status != "0");
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        let body = body.to_bytes();
        let serving = body
            .get(5..)
            .and_then(|bytes| <HealthResponse as prost::Message>::decode(bytes).ok());
        match serving {
            Some(HealthResponse { status: 1 }) if !refused => Ok(()),
            Some(other) => Err(format!("service unhealthy (responded with status {})", other.status)),
            None => Err("the health service did not answer".to_string()),
        }
    }
    .await;
    driving.abort();
    answered
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Probes take any certificate, as kubelet does: they ask whether something serves, not who it is.
fn unverified() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Unverified(provider.clone()));
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|error| unreachable!("ring supports the default protocol versions: {error}"))
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

#[derive(Debug)]
struct Unverified(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &rustls_pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &rustls_pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
