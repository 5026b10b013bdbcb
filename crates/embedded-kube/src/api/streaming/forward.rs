//! Port forwarding: each connection is a pair of streams, one for data and one for an error message.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::spdy::{Event, Session, Writer};
use super::{Link, Piece};
use crate::streams::{PodRef, PodStreams};

const CHUNK: usize = 32 * 1024;
/// How many bytes of one connection may wait for its target.
const WAITING: usize = 64;

/// A connection whose two streams have not both been opened yet.
#[derive(Default)]
struct Half {
    data: Option<u32>,
    error: Option<u32>,
    port: Option<u16>,
}

/// Serves connections until the client disconnects.
pub(super) async fn over_spdy(mut session: Session, pod: PodRef, streams: Arc<dyn PodStreams>) {
    let mut halves: HashMap<String, Half> = HashMap::new();
    // `None`: the client sends no more.
    let mut targets: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
    let mut waiting: HashMap<u32, mpsc::Receiver<Bytes>> = HashMap::new();
    let mut connections = JoinSet::new();
    while let Some(event) = session.events.recv().await {
        while connections.try_join_next().is_some() {}
        match event {
            Event::Opened { id, headers, finished } => {
                let text = |name: &str| headers.get(name).cloned().unwrap_or_default();
                let (request, port) = (text("requestid"), text("port").parse().ok());
                let half = halves.entry(request.clone()).or_default();
                match text("streamtype").as_str() {
                    "error" => half.error = Some(id),
                    "data" => {
                        half.data = Some(id);
                        let (sender, receiver) = mpsc::channel(WAITING);
                        waiting.insert(id, receiver);
                        if !finished {
                            targets.insert(id, sender);
                        }
                    }
                    _ => {
                        session.writer.reset(id).await;
                        continue;
                    }
                }
                half.port = half.port.or(port);
                session.writer.accept(id).await;
                if let Half {
                    data: Some(data),
                    error: Some(error),
                    port,
                } = *half
                {
                    halves.remove(&request);
                    let (Some(port), Some(input)) = (port, waiting.remove(&data)) else {
                        continue;
                    };
                    let (writer, pod, streams) = (session.writer.clone(), pod.clone(), streams.clone());
                    connections.spawn(async move {
                        let outcome = connect(pod, port, input, Out::Spdy(&writer, data), streams).await;
                        if let Err(reason) = outcome {
                            writer.data(error, Bytes::from(reason)).await;
                        }
                        writer.finish(error).await;
                        writer.finish(data).await;
                    });
                }
            }
            Event::Data(id, bytes) => {
                if let Some(target) = targets.get(&id)
                    && target.send(bytes).await.is_err()
                {
                    targets.remove(&id);
                }
            }
            Event::Closed(id) => {
                targets.remove(&id);
            }
        }
    }
}

enum Out<'a> {
    Spdy(&'a Writer, u32),
    Channel(&'a mpsc::Sender<Piece>, u8),
}

impl Out<'_> {
    async fn send(&self, bytes: Bytes) {
        match self {
            Out::Spdy(writer, id) => writer.data(*id, bytes).await,
            Out::Channel(sender, channel) => {
                let _ = sender.send(Piece::Data(*channel, bytes)).await;
            }
        }
    }

    async fn finish(&self) {
        match self {
            Out::Spdy(writer, id) => writer.finish(*id).await,
            Out::Channel(sender, channel) => {
                let _ = sender.send(Piece::Close(*channel)).await;
            }
        }
    }
}

/// One connection, both ways, until the target has ended it.
async fn connect(
    pod: PodRef,
    port: u16,
    mut input: mpsc::Receiver<Bytes>,
    output: Out<'_>,
    streams: Arc<dyn PodStreams>,
) -> Result<(), String> {
    let name = pod.name.clone();
    let target = streams.port_forward(pod, port).await;
    let target = target.map_err(|error| format!("error forwarding port {port} to pod {name}: {error}"))?;
    let (mut from, mut to) = tokio::io::split(target);
    let inward = async {
        while let Some(bytes) = input.recv().await {
            if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    let outward = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(_) => output.send(buffer.split().freeze()).await,
            }
        }
        output.finish().await;
    };
    tokio::pin!(inward, outward);
    tokio::select! {
        () = &mut outward => {}
        () = &mut inward => outward.await,
    }
    Ok(())
}

/// The older WebSocket form: each port of the query has two channels, data and error, and both begin with the port.
pub(super) fn greeting(ports: &[u16]) -> Vec<Piece> {
    let channels = ports.iter().zip(0u8..).flat_map(|(port, index)| {
        let port = Bytes::copy_from_slice(&port.to_le_bytes());
        [
            Piece::Data(index.wrapping_mul(2), port.clone()),
            Piece::Data(index.wrapping_mul(2) + 1, port),
        ]
    });
    channels.collect()
}

pub(super) async fn over_channels(link: Link, ports: Vec<u16>, pod: PodRef, streams: Arc<dyn PodStreams>) {
    let Link { mut incoming, outgoing } = link;
    let mut targets: HashMap<u8, mpsc::Sender<Bytes>> = HashMap::new();
    let mut connections = JoinSet::new();
    for (port, index) in ports.into_iter().zip(0u8..127) {
        let (sender, input) = mpsc::channel(WAITING);
        let channel = index * 2;
        targets.insert(channel, sender);
        let (pod, streams, outgoing) = (pod.clone(), streams.clone(), outgoing.clone());
        connections.spawn(async move {
            if let Err(reason) = connect(pod, port, input, Out::Channel(&outgoing, channel), streams).await {
                let _ = outgoing.send(Piece::Data(channel + 1, Bytes::from(reason))).await;
            }
        });
    }
    drop(outgoing);
    let feeding = async {
        while let Some(piece) = incoming.recv().await {
            match piece {
                Piece::Data(channel, bytes) => {
                    if let Some(target) = targets.get(&channel)
                        && target.send(bytes).await.is_err()
                    {
                        targets.remove(&channel);
                    }
                }
                Piece::Close(channel) => {
                    targets.remove(&channel);
                }
            }
        }
    };
    let over = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = feeding => {}
        () = over => {}
    }
}
