//! The wire protocols of `exec`, `attach` and `port-forward`, on top of [`crate::streams::PodStreams`].
//!
//! Current clients open a WebSocket; older ones (kubectl up to 1.28) upgrade the connection to SPDY/3.1. Current kubectl
//! forwards ports with SPDY inside a WebSocket. Each is turned into the same few things:
//! - [`remote`]: a process with its streams, over a [`Link`] of numbered channels
//! - [`forward`]: connections to ports
//!
//! [`spdy`] and [`websocket`] know nothing of pods.

mod dictionary;
mod forward;
mod remote;
mod spdy;
#[cfg(test)]
mod tests;
mod websocket;

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;

use super::body::{Body, full};
use super::errors::{Result, Status};
use super::pods::{container, pod_ref};
use super::rest::Call;
use crate::streams::{ExecOptions, PodRef, PodStreams};

/// The header in which SPDY clients name their inner protocol.
const PROTOCOL: &str = "x-stream-protocol-version";
const FORWARD: &str = "portforward.k8s.io";
/// SPDY inside a WebSocket.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const REMOTE_SPDY: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const CHANNELS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// Something that came in on a channel, or goes out.
#[derive(Debug, PartialEq)]
enum Piece {
    Data(u8, Bytes),
    /// The end of this direction of the channel.
    Close(u8),
}

/// Numbered channels to a client. When `incoming` ends, the client has disconnected; dropping `outgoing` tells the
/// client.
struct Link {
    incoming: mpsc::Receiver<Piece>,
    outgoing: mpsc::Sender<Piece>,
}

/// What a client wants to do with a pod.
enum Action {
    Run(ExecOptions, bool),
    Forward(Vec<u16>),
}

/// Serves `exec`, `attach` and `portforward`: negotiates a protocol, then continues in the background.
pub(crate) async fn serve(
    call: &Call,
    pod: &serde_json::Value,
    mut head: Parts,
    upgrade: Option<OnUpgrade>,
) -> Result<Response<Body>> {
    let action = action(call, pod)?;
    let streams = call.server.streams.get().cloned();
    let streams = streams.ok_or_else(|| Status::new(503, "ServiceUnavailable", "no node serves streams yet"))?;
    let Some(upgrade) = upgrade else {
        return Err(Status::bad_request("Upgrade request required"));
    };
    let pod = pod_ref(pod);
    let is = |wanted: &str| {
        let value = head.headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| value.eq_ignore_ascii_case(wanted))
    };
    let (stop, tasks) = (call.server.stop.clone(), call.server.tasks.clone());
    if is("websocket") {
        head.extensions.insert(upgrade);
        return websocket::answer(head, action, pod, streams, stop, tasks).await;
    }
    if !is("SPDY/3.1") {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let offered = offered(&head.headers, PROTOCOL);
    let known: &[&str] = match action {
        Action::Run(..) => &REMOTE_SPDY,
        Action::Forward(_) => &[FORWARD],
    };
    let Some(chosen) = known.iter().find(|name| offered.iter().any(|offer| offer == *name)) else {
        let text = format!("unable to negotiate protocol: client supports {offered:?}, server supports {known:?}");
        return Err(Status::new(403, "Forbidden", text));
    };
    tasks.spawn(async move {
        let talk = async {
            match upgrade.await {
                Ok(socket) => serve_spdy(TokioIo::new(socket), action, pod, streams).await,
                Err(error) => tracing::debug!(%error, "the client did not go on after the upgrade"),
            }
        };
        stop.run_until_cancelled(talk).await;
    });
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(PROTOCOL, HeaderValue::from_static(chosen));
    Ok(response)
}

/// SPDY on a socket, or inside a WebSocket.
async fn serve_spdy<S>(socket: S, action: Action, pod: PodRef, streams: Arc<dyn PodStreams>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
{
    let session = spdy::start(socket);
    match action {
        Action::Run(options, attach) => remote::over_spdy(session, options, attach, pod, streams).await,
        Action::Forward(_) => forward::over_spdy(session, pod, streams).await,
    }
}

/// All values of a header that may be repeated or hold a list.
fn offered(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .collect()
}

fn action(call: &Call, pod: &serde_json::Value) -> Result<Action> {
    let query = &call.query;
    if call.path.subresource == "portforward" {
        let parse = |text: &String| text.split(',').map(str::parse::<u16>).collect::<Vec<_>>();
        let ports: std::result::Result<Vec<u16>, _> = query.all("ports").iter().flat_map(parse).collect();
        let ports = ports.map_err(|_| Status::bad_request("\"ports\" must hold port numbers"))?;
        return Ok(Action::Forward(ports));
    }
    let attach = call.path.subresource == "attach";
    let tty = query.flag("tty");
    let options = ExecOptions {
        container: Some(container(pod, query.get("container"))?),
        command: query.all("command").to_vec(),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr") && !tty,
        tty,
    };
    if !attach && options.command.is_empty() {
        return Err(Status::bad_request(
            "you must specify at least one command for the container",
        ));
    }
    if !(options.stdin || options.stdout || options.stderr) {
        return Err(Status::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    Ok(Action::Run(options, attach))
}
