//! Between the agent and the process that runs mysqld, which are in two containers of a pod: one request and one reply, a line
//! of JSON each, over a socket on a volume that both mount.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stateward_mysql::agent::{End, Ended, Mysqld};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

/// No line is longer.
const LIMIT: u64 = 64 * 1024;
/// For a reply that needs nothing but a look.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Request {
    State,
    End(End),
}

/// A request to end mysqld, and where the reply goes.
pub(super) type Order = (End, oneshot::Sender<Ended>);

/// Serves requests until it is dropped. `tasks` tracks replies that are being written.
pub(super) async fn listen(
    socket: &Path,
    state: watch::Receiver<Mysqld>,
    orders: mpsc::Sender<Order>,
    tasks: TaskTracker,
) -> io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (state, orders) = (state.clone(), orders.clone());
        tasks.spawn(async move {
            if let Err(error) = reply(stream, &state, &orders).await {
                tracing::debug!(%error, "a request of the agent failed");
            }
        });
    }
}

async fn reply(
    mut stream: UnixStream,
    state: &watch::Receiver<Mysqld>,
    orders: &mpsc::Sender<Order>,
) -> io::Result<()> {
    let mut line = String::new();
    let (read, mut write) = stream.split();
    BufReader::new(read.take(LIMIT)).read_line(&mut line).await?;
    let text = match serde_json::from_str(&line)? {
        Request::State => serde_json::to_string(&*state.borrow())?,
        Request::End(end) => {
            let (sender, receiver) = oneshot::channel();
            // When nobody takes the order, mysqld has ended, and the sender must go: nothing comes from it.
            drop(orders.send((end, sender)).await);
            serde_json::to_string(&receiver.await.unwrap_or(Ended::NotRunning))?
        }
    };
    write.write_all(format!("{text}\n").as_bytes()).await?;
    write.shutdown().await
}

async fn ask<T: for<'de> Deserialize<'de>>(socket: &Path, request: &Request) -> io::Result<T> {
    let mut stream = UnixStream::connect(socket).await?;
    let text = serde_json::to_string(request)?;
    stream.write_all(format!("{text}\n").as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream.take(LIMIT)).read_line(&mut line).await?;
    Ok(serde_json::from_str(&line)?)
}

/// Nobody listens: the process that runs mysqld has not started or has ended.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Asks which process runs.
pub(super) async fn state(socket: &Path) -> io::Result<Mysqld> {
    match tokio::time::timeout(PATIENCE, ask(socket, &Request::State)).await {
        Ok(Err(error)) if is_absent(&error) => Ok(Mysqld::Absent),
        Ok(state) => state,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Lets mysqld be ended, and returns when it has ended.
pub(super) async fn end(socket: &Path, end: End) -> io::Result<Ended> {
    match ask(socket, &Request::End(end)).await {
        Err(error) if is_absent(&error) => Ok(Ended::NotRunning),
        ended => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_reach_the_process_that_runs_mysqld() {
        // given a process that runs mysqld
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        assert_eq!(state(&socket).await.expect("a reply"), Mysqld::Absent);
        let running = Mysqld::Running {
            boot: "b".into(),
            ready: false,
        };
        let (_state, receiver) = watch::channel(running.clone());
        let (orders, mut received) = mpsc::channel::<Order>(1);
        let path = socket.clone();
        let tasks = TaskTracker::new();
        let server = tokio::spawn(async move { listen(&path, receiver, orders, tasks).await });
        while !socket.exists() {
            tokio::task::yield_now().await;
        }
        // when it is asked, then it replies
        assert_eq!(state(&socket).await.expect("a reply"), running);
        // and an order is carried out before the reply comes
        let boot = Some("b".to_owned());
        let order = End { boot: boot.clone() };
        let path = socket.clone();
        let asked = tokio::spawn(async move { end(&path, order).await });
        let (order, reply) = received.recv().await.expect("an order");
        assert_eq!(order.boot, boot);
        assert!(!asked.is_finished());
        reply.send(Ended::Killed { boot: "b".into() }).expect("awaited");
        assert_eq!(
            asked.await.expect("no panic").expect("a reply"),
            Ended::Killed { boot: "b".into() }
        );
        // and when nobody carries it out any more, none runs
        drop(received);
        assert_eq!(end(&socket, End::default()).await.expect("a reply"), Ended::NotRunning);
        server.abort();
    }
}
