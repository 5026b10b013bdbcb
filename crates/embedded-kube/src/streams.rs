//! The interface between the API server and the nodes: what `logs`, `exec`, `attach` and `port-forward` need of a
//! running pod. The API server implements the wire protocols, a node the processes; neither knows the other's types.
//!
//! One [`PodStreams`] serves the whole cluster: it finds the node that runs the pod by itself.

use std::io;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// The target pod. The UID keeps a request from reaching a newer pod of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The query of `GET …/pods/NAME/log`, with relative times already made absolute.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogOptions {
    /// Absent: the pod's only container, or the one that `kubectl.kubernetes.io/default-container` names; the API server
    /// resolves this and always sends a name.
    pub(crate) container: Option<String>,
    /// Stay connected and send new lines; the stream ends when the container ends for good.
    pub(crate) follow: bool,
    /// The previous run.
    pub(crate) previous: bool,
    /// An RFC 3339 timestamp and a space before each line.
    pub(crate) timestamps: bool,
    /// Only the last so many lines.
    pub(crate) tail_lines: Option<u64>,
    /// Stop after so many bytes.
    pub(crate) limit_bytes: Option<u64>,
    /// Only lines written at or after this time.
    pub(crate) since: Option<jiff::Timestamp>,
}

/// The query of `exec` and `attach`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecOptions {
    /// Always set by the API server, see [`LogOptions::container`].
    pub(crate) container: Option<String>,
    /// Empty for `attach`.
    pub(crate) command: Vec<String>,
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    /// With `tty` there is no stderr of its own: it is part of stdout.
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

/// The size of the user's terminal window, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) width: u16,
    pub(crate) height: u16,
}

/// A started process with the requested streams. Dropping it ends the process of an `exec`; of an `attach` it only
/// detaches.
pub(crate) struct ExecSession {
    /// Shutting it down (or dropping it) is the process's end of input.
    pub(crate) stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// Ends when the process and its children have closed it.
    pub(crate) stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    pub(crate) stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Present with `tty` only.
    pub(crate) resize: Option<mpsc::Sender<TerminalSize>>,
    /// The exit code; 128 + signal number where a signal ended it.
    pub(crate) exit: BoxFuture<'static, Result<i32, StreamError>>,
}

/// Both directions of one forwarded connection.
pub(crate) trait DuplexStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> DuplexStream for T {}

/// Why a stream is not available. The API server converts it to a Status object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// 404: no node runs this pod.
    #[error("pods \"{0}\" not found")]
    PodNotFound(String),
    /// 400: the container does not exist, has not started yet, is being created, has no previous run…
    #[error("{0}")]
    BadRequest(String),
    /// 500: the container is not running, the command does not exist, the port refused…
    #[error("{0}")]
    Internal(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The interface that the nodes offer to the API server.
pub(crate) trait PodStreams: Send + Sync + 'static {
    /// The container's output so far, and with `follow` also the output to come.
    fn logs(
        &self,
        pod: PodRef,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, io::Result<Bytes>>, StreamError>>;

    /// Starts a command in a running container.
    fn exec(&self, pod: PodRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, StreamError>>;

    /// Joins the streams of the container's own process.
    fn attach(&self, pod: PodRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, StreamError>>;

    /// One connection to a port of the pod.
    fn port_forward(&self, pod: PodRef, port: u16) -> BoxFuture<'_, Result<Box<dyn DuplexStream>, StreamError>>;
}
