//! A process and its streams over a link: Kubernetes' remote command protocol, version 4 and 5.
//!
//! Channels: 0 stdin, 1 stdout, 2 stderr, 3 the outcome as a Status object, 4 the terminal's size as JSON.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{Link, Piece};
use crate::api::errors::Status;
use crate::streams::{ExecOptions, ExecSession, PodRef, PodStreams, TerminalSize};

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const OUTCOME: u8 = 3;
pub(super) const RESIZE: u8 = 4;

/// How long to wait for streams that children of a process hold open after its end.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// The size of one read.
const CHUNK: usize = 32 * 1024;

/// Starts the process and serves it until it ends or the client disconnects.
pub(super) async fn run(link: Link, options: ExecOptions, attach: bool, pod: PodRef, streams: Arc<dyn PodStreams>) {
    let started = if attach {
        streams.attach(pod, options).await
    } else {
        streams.exec(pod, options).await
    };
    let Link { mut incoming, outgoing } = link;
    let outcome = match started {
        Err(error) => Status::from(error).to_value(),
        Ok(session) => {
            let ExecSession {
                stdin,
                stdout,
                stderr,
                resize,
                exit,
            } = session;
            let output = async {
                tokio::join!(pump(stdout, STDOUT, &outgoing), pump(stderr, STDERR, &outgoing));
            };
            let input = feed(&mut incoming, stdin, resize);
            tokio::pin!(output, exit);
            let mut input = std::pin::pin!(input);
            let mut drained = false;
            let code = loop {
                tokio::select! {
                    code = &mut exit => break code,
                    () = &mut output, if !drained => drained = true,
                    () = &mut input => return, // the client is gone; dropping the session ends the process
                }
            };
            if !drained {
                tokio::select! {
                    _ = tokio::time::timeout(LAST_OUTPUT, &mut output) => {}
                    () = &mut input => return,
                }
            }
            match code {
                Ok(code) => outcome(code),
                Err(error) => Status::from(error).to_value(),
            }
        }
    };
    let _ = outgoing
        .send(Piece::Data(OUTCOME, Bytes::from(outcome.to_string())))
        .await;
    let _ = outgoing.send(Piece::Close(OUTCOME)).await;
}

/// The process's output to the client, until it ends.
async fn pump(from: Option<Box<dyn AsyncRead + Send + Unpin>>, channel: u8, to: &mpsc::Sender<Piece>) {
    let Some(mut from) = from else { return };
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        match from.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                if to.send(Piece::Data(channel, buffer.split().freeze())).await.is_err() {
                    return;
                }
            }
        }
    }
    let _ = to.send(Piece::Close(channel)).await;
}

/// The client's input to the process, until the client disconnects.
async fn feed(
    incoming: &mut mpsc::Receiver<Piece>,
    mut stdin: Option<Box<dyn tokio::io::AsyncWrite + Send + Unpin>>,
    resize: Option<mpsc::Sender<TerminalSize>>,
) {
    while let Some(piece) = incoming.recv().await {
        match piece {
            Piece::Data(STDIN, bytes) => {
                // A process that no longer reads is not ended: its output may still come.
                if let Some(open) = &mut stdin
                    && (open.write_all(&bytes).await.is_err() || open.flush().await.is_err())
                {
                    stdin = None;
                }
            }
            Piece::Close(STDIN) => {
                if let Some(mut open) = stdin.take() {
                    let _ = open.shutdown().await;
                }
            }
            Piece::Data(RESIZE, bytes) => {
                if let (Some(resize), Some(size)) = (&resize, last_size(&bytes)) {
                    let _ = resize.send(size).await;
                }
            }
            Piece::Data(..) | Piece::Close(_) => {}
        }
    }
}

#[derive(Deserialize)]
struct Size {
    #[serde(rename = "Width")]
    width: u16,
    #[serde(rename = "Height")]
    height: u16,
}

/// Several sizes may come at the same time; the last one counts.
fn last_size(bytes: &[u8]) -> Option<TerminalSize> {
    let sizes = serde_json::Deserializer::from_slice(bytes).into_iter::<Size>();
    let last = sizes.map_while(std::result::Result::ok).last()?;
    Some(TerminalSize {
        width: last.width,
        height: last.height,
    })
}

fn outcome(code: i32) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_several_terminal_sizes_counts() {
        let size = last_size(b"{\"Width\":80,\"Height\":24}\n{\"Width\":100,\"Height\":30}\n").unwrap();
        assert_eq!((size.width, size.height), (100, 30));
        assert_eq!(last_size(b"nonsense"), None);
    }
}
