//! WebSockets: numbered channels in binary messages (`v4.channel.k8s.io`, `v5.channel.k8s.io`), or SPDY as a tunnel.
//!
//! The first byte of a message is the channel. Version 5 adds a message with which the client closes one: 255 and its
//! number. The server closes all at once.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::response::IntoResponse;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use http::Response;
use http::request::Parts;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Action, CHANNELS, Link, Piece, TUNNEL, forward, remote, spdy};
use crate::api::body::Body;
use crate::api::errors::{Result, Status};
use crate::streams::{PodRef, PodStreams};

const CLOSE: u8 = 255;
/// The size of a message. Clients send at most 32 KiB at a time; servers of Kubernetes accept this much.
const MOST: usize = 2 * 1024 * 1024;

/// Negotiates a protocol and continues in the background.
pub(super) async fn answer(
    mut head: Parts,
    action: Action,
    pod: PodRef,
    streams: Arc<dyn PodStreams>,
    stop: CancellationToken,
    tasks: TaskTracker,
) -> Result<Response<Body>> {
    let upgrade = WebSocketUpgrade::from_request_parts(&mut head, &()).await;
    let upgrade = upgrade
        .map_err(|error| Status::bad_request(error.to_string()))?
        .max_message_size(MOST);
    let known: &[&'static str] = match action {
        Action::Run(..) => &CHANNELS,
        Action::Forward(_) => &[TUNNEL, CHANNELS[0], CHANNELS[1]],
    };
    let upgrade = upgrade.protocols(known.iter().copied());
    let Some(chosen) = upgrade
        .selected_protocol()
        .and_then(|chosen| chosen.to_str().ok())
        .map(str::to_owned)
    else {
        let text = format!("unable to negotiate a protocol: the server speaks {}", known.join(", "));
        return Err(Status::bad_request(text));
    };
    let answer = upgrade.on_upgrade(move |socket| async move {
        let talk = async {
            match action {
                Action::Forward(_) if chosen == TUNNEL => {
                    forward::over_spdy(spdy::start(tunnel(socket)), pod, streams).await;
                }
                Action::Run(options, attach) => {
                    // An empty message tells the client that the connection is established.
                    let first = if options.stdout {
                        remote::STDOUT
                    } else {
                        remote::OUTCOME
                    };
                    let (link, pump) = link(socket, vec![Piece::Data(first, Bytes::new())]);
                    tokio::join!(remote::run(link, options, attach, pod, streams), pump);
                }
                Action::Forward(ports) => {
                    let (link, pump) = link(socket, forward::greeting(&ports));
                    tokio::join!(forward::over_channels(link, ports, pod, streams), pump);
                }
            }
        };
        let talk = tasks.track_future(talk);
        stop.run_until_cancelled(talk).await;
    });
    Ok(answer
        .into_response()
        .map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
}

/// The socket as numbered channels. The future moves the messages: it ends when the socket is closed.
fn link(socket: WebSocket, greeting: Vec<Piece>) -> (Link, impl Future<Output = ()> + Send) {
    let (pieces, incoming) = mpsc::channel(16);
    let (outgoing, mut out) = mpsc::channel(16);
    let (mut sink, mut source) = socket.split();
    let inward = async move {
        while let Some(Ok(message)) = source.next().await {
            let piece = match message {
                Message::Binary(bytes) => piece(bytes),
                Message::Text(text) => piece(Bytes::from(text)),
                Message::Close(_) => return,
                Message::Ping(_) | Message::Pong(_) => None,
            };
            if let Some(piece) = piece
                && pieces.send(piece).await.is_err()
            {
                // The other side has ended: continue reading, so that the client's close is observed.
                while let Some(Ok(message)) = source.next().await {
                    if matches!(message, Message::Close(_)) {
                        return;
                    }
                }
                return;
            }
        }
    };
    let outward = async move {
        for message in greeting.into_iter().filter_map(message) {
            if sink.send(message).await.is_err() {
                return;
            }
        }
        while let Some(piece) = out.recv().await {
            if let Some(message) = message(piece)
                && sink.send(message).await.is_err()
            {
                return;
            }
        }
        let _ = sink.send(goodbye()).await;
    };
    let pump = async move {
        // Reading continues beside writing; when all is written, the client has a moment to close its side.
        tokio::pin!(inward);
        tokio::pin!(outward);
        tokio::select! {
            () = &mut outward => {
                let _ = tokio::time::timeout(std::time::Duration::from_secs(1), inward).await;
            }
            () = &mut inward => {}
        }
    };
    (Link { incoming, outgoing }, pump)
}

fn piece(bytes: Bytes) -> Option<Piece> {
    match bytes.first()? {
        &CLOSE => bytes.get(1).map(|channel| Piece::Close(*channel)),
        channel => Some(Piece::Data(*channel, bytes.slice(1..))),
    }
}

fn message(piece: Piece) -> Option<Message> {
    let Piece::Data(channel, data) = piece else { return None };
    let mut bytes = BytesMut::with_capacity(data.len() + 1);
    bytes.put_u8(channel);
    bytes.extend_from_slice(&data);
    Some(Message::Binary(bytes.freeze()))
}

/// Clients treat an end without the code for "normal" as a failure.
fn goodbye() -> Message {
    Message::Close(Some(CloseFrame {
        code: close_code::NORMAL,
        reason: Utf8Bytes::default(),
    }))
}

/// The socket as a plain stream of bytes.
fn tunnel(socket: WebSocket) -> tokio::io::DuplexStream {
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        let (mut sink, mut source) = socket.split();
        let (mut from, mut to) = tokio::io::split(far);
        let inward = async {
            while let Some(Ok(message)) = source.next().await {
                match message {
                    Message::Binary(bytes) if to.write_all(&bytes).await.is_ok() => {}
                    Message::Ping(_) | Message::Pong(_) => {}
                    _ => break,
                }
            }
            let _ = to.shutdown().await;
        };
        let outward = async {
            let mut buffer = BytesMut::new();
            loop {
                buffer.reserve(32 * 1024);
                match from.read_buf(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {
                        if sink.send(Message::Binary(buffer.split().freeze())).await.is_err() {
                            break;
                        }
                    }
                }
            }
            let _ = sink.send(goodbye()).await;
        };
        tokio::join!(inward, outward);
    });
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_their_channel_in_the_first_byte() {
        assert_eq!(
            piece(Bytes::from_static(&[0, b'a'])),
            Some(Piece::Data(0, Bytes::from_static(b"a")))
        );
        assert_eq!(piece(Bytes::from_static(&[255, 0])), Some(Piece::Close(0)));
        assert_eq!(piece(Bytes::from_static(&[255])), None);
        assert_eq!(piece(Bytes::new()), None);
        let data = message(Piece::Data(1, Bytes::from_static(b"a")));
        assert_eq!(data, Some(Message::Binary(Bytes::from_static(&[1, b'a']))));
        assert_eq!(message(Piece::Close(3)), None);
    }
}
