//! `stateward agent mysql-serve`: the container beside mysqld that serves the protocol of [`stateward_mysql::agent`].

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State as Shared};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use stateward_mysql::agent::{
    END, End, Ended, Mysqld, READY, SAVE_ERRANT, STATE, SaveErrant, Saving, State, TOKEN_KEY,
};
use stateward_mysql::{layout, names};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::errant::Errant;
use super::tls::Certificate;
use super::{control, local, volume};

/// A client that does not finish its handshake within it is dropped.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often an agent that was told to end looks whether mysqld has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port cannot be listened on.
    #[error("cannot listen: {0}")]
    Listen(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
    /// Serving failed.
    #[error("cannot serve: {0}")]
    Serve(#[source] io::Error),
}

struct Member {
    secrets: PathBuf,
    control: PathBuf,
    socket: PathBuf,
    volume: PathBuf,
    data: PathBuf,
    errant: Errant,
}

/// Serves until mysqld's container has ended after this one was told to end: an operator that replaces a primary may need it
/// up to the last moment.
pub async fn serve() -> Result<(), ServeError> {
    let member = Arc::new(Member {
        secrets: local::secrets().into(),
        control: layout::CONTROL.into(),
        socket: layout::SOCKET.into(),
        volume: layout::VOLUME.into(),
        data: layout::DATA.into(),
        errant: Errant::new(Path::new(layout::VOLUME), Path::new(layout::DATA)),
    });
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let listener = listen().await.map_err(ServeError::Listen)?;
    let certificate = Certificate::of(Path::new(layout::TLS)).map(Arc::new);
    let control = member.control.clone();
    let ended = async move {
        terminate.recv().await;
        while matches!(control::state(&control).await, Ok(Mysqld::Running { .. })) {
            sleep(LOOK).await;
        }
    };
    let serving = axum::serve(Connections::new(listener, certificate), router(member));
    tokio::select! {
        served = async { serving.await } => served.map_err(ServeError::Serve),
        () = ended => Ok(()),
    }
}

/// On every address, also of IPv6 where the machine has it.
async fn listen() -> io::Result<TcpListener> {
    let port = u16::try_from(names::AGENT_PORT).map_err(io::Error::other)?;
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        listener => listener,
    }
}

fn router(member: Arc<Member>) -> Router {
    Router::new()
        .route(STATE, get(state))
        .route(END, post(end))
        .route(SAVE_ERRANT, post(save_errant))
        .layer(middleware::from_fn_with_state(member.clone(), authorized))
        .route(READY, get(ready))
        .with_state(member)
}

/// Lets requests with the token pass. The file is read each time, as the token may have been drawn anew.
async fn authorized(Shared(member): Shared<Arc<Member>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    match local::password(&member.secrets.join(TOKEN_KEY)) {
        Ok(token) if !token.is_empty() && given.is_some_and(|given| same(given, &token)) => next.run(request).await,
        Ok(_) => (StatusCode::UNAUTHORIZED, "the token is missing or wrong").into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot read the token");
            (StatusCode::SERVICE_UNAVAILABLE, "the agent cannot read its token").into_response()
        }
    }
}

/// Compares without telling by its time how much is right.
fn same(given: &str, token: &str) -> bool {
    let differences = given.bytes().zip(token.bytes()).map(|(one, other)| one ^ other);
    let different = differences.fold(0, |sum, difference| sum | difference);
    given.len() == token.len() && different == 0
}

async fn ready(Shared(member): Shared<Arc<Member>>) -> (StatusCode, &'static str) {
    if local::replies(&member.socket).await {
        (StatusCode::OK, "mysqld replies")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "mysqld does not reply")
    }
}

/// What a failure is answered with.
fn failed(error: &io::Error) -> (StatusCode, String) {
    (StatusCode::BAD_GATEWAY, format!("the container of mysqld: {error}"))
}

async fn state(Shared(member): Shared<Arc<Member>>) -> Result<Json<State>, (StatusCode, String)> {
    let mut mysqld = control::state(&member.control).await.map_err(|error| failed(&error))?;
    if let Mysqld::Running { ready, .. } = &mut mysqld {
        *ready = local::replies(&member.socket).await;
    }
    let files = member.clone();
    let read =
        tokio::task::spawn_blocking(move || (volume::space(&files.volume, &files.data).ok(), files.errant.saved()));
    let (volume, saved) = read.await.map_err(|error| failed(&io::Error::other(error)))?;
    Ok(Json(State {
        mysqld,
        volume,
        saved,
        saving: member.errant.last(),
    }))
}

async fn end(Shared(member): Shared<Arc<Member>>, Json(order): Json<End>) -> Result<Json<Ended>, (StatusCode, String)> {
    let ended = control::end(&member.control, order).await;
    ended.map(Json).map_err(|error| failed(&error))
}

async fn save_errant(Shared(member): Shared<Arc<Member>>, Json(order): Json<SaveErrant>) -> Json<Saving> {
    Json(member.errant.save(order.gtids).await)
}

/// A connection, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connections whose handshake is done. Handshakes are made beside each other: a slow client holds up nobody.
struct Connections {
    local: io::Result<SocketAddr>,
    accepted: mpsc::Receiver<(Box<dyn Stream>, SocketAddr)>,
}

impl Connections {
    fn new(listener: TcpListener, certificate: Option<Arc<Certificate>>) -> Self {
        let local = listener.local_addr();
        let (sender, accepted) = mpsc::channel(16);
        tokio::spawn(async move {
            loop {
                let (stream, peer) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(LOOK).await;
                        continue;
                    }
                };
                let (certificate, sender) = (certificate.clone(), sender.clone());
                tokio::spawn(async move {
                    match handshake(stream, certificate.as_deref()).await {
                        // A failure means that the agent ends.
                        Ok(stream) => drop(sender.send((stream, peer)).await),
                        Err(error) => tracing::debug!(%error, %peer, "no handshake"),
                    }
                });
            }
        });
        Self { local, accepted }
    }
}

async fn handshake(stream: TcpStream, certificate: Option<&Certificate>) -> io::Result<Box<dyn Stream>> {
    stream.set_nodelay(true)?;
    let Some(certificate) = certificate else {
        return Ok(Box::new(stream));
    };
    let config = certificate.config().map_err(io::Error::other)?;
    let accepted = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await;
    Ok(Box::new(accepted.map_err(io::Error::other)??))
}

impl axum::serve::Listener for Connections {
    type Io = Box<dyn Stream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The task that accepts never ends before this.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.local {
            Ok(address) => Ok(*address),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}
