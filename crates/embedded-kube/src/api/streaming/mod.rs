//! The wire protocols of `exec`, `attach` and `port-forward`, on top of [`crate::streams::PodStreams`].
//!
//! Clients open a WebSocket; in it, kubectl forwards ports with SPDY. Clients that upgrade the connection itself to SPDY (kubectl
//! before 1.31) are refused. What they ask for is turned into the same few things:
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

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, header};
use hyper::upgrade::OnUpgrade;
use tokio::sync::mpsc;

use super::body::Body;
use super::errors::{Result, Status};
use super::pods::{container, pod_ref};
use super::rest::Call;
use crate::streams::ExecOptions;

/// SPDY inside a WebSocket.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
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
    let websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    if !head.headers.get(header::UPGRADE).is_some_and(websocket) {
        return Err(Status::bad_request(
            "only WebSockets are served here: use kubectl 1.31 or newer",
        ));
    }
    head.extensions.insert(upgrade);
    let (stop, tasks) = (call.server.stop.clone(), call.server.tasks.clone());
    websocket::answer(head, action, pod_ref(pod), streams, stop, tasks).await
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
