//! mysqld through its socket: whether it replies, and whether it is sealed.

use std::io;
use std::path::Path;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use stateward_mysql::{layout, names};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// A server that works replies within it.
const PATIENCE: Duration = Duration::from_secs(2);

/// mysqld greets whoever connects: it serves sessions. Logging in would need an account, and tell nothing more.
pub(super) async fn replies(socket: &Path) -> bool {
    let greeting = async {
        let mut stream = UnixStream::connect(socket).await?;
        let mut header = [0; 5];
        stream.read_exact(&mut header).await
    };
    matches!(timeout(PATIENCE, greeting).await, Ok(Ok(_)))
}

/// Whether a server can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    /// It says that it is read-only, or it serves nobody: it has not been opened since it started.
    Sealed,
    /// It says that it is writable.
    Open,
    /// It does not say.
    Unknown,
}

/// Asks the server whether it can be written to.
pub(super) async fn seal(socket: &Path, secrets: &Path) -> Seal {
    match UnixStream::connect(socket).await {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Seal::Sealed;
        }
        _ => {}
    }
    match timeout(PATIENCE, read_only(socket, secrets)).await {
        Ok(Ok(true)) => Seal::Sealed,
        Ok(Ok(false)) => Seal::Open,
        Ok(Err(error)) => {
            tracing::debug!(%error, "mysqld does not say whether it is read-only");
            Seal::Unknown
        }
        Err(_) => Seal::Unknown,
    }
}

#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("cannot read the password: {0}")]
    Password(#[from] io::Error),
    #[error(transparent)]
    Session(#[from] mysql_async::Error),
    #[error("no reply to a query")]
    NoRow,
}

/// While `super_read_only=ON` waits behind commits, only `read_only` reads as on, and the server can still be written to.
async fn read_only(socket: &Path, secrets: &Path) -> Result<bool, AskError> {
    let password = password(&secrets.join(names::ACCOUNT_OPERATOR))?;
    let options = OptsBuilder::default()
        .socket(Some(socket.to_string_lossy()))
        .user(Some(names::ACCOUNT_OPERATOR))
        .pass(Some(password));
    let mut session = Conn::new(options).await?;
    let query = "SELECT @@GLOBAL.super_read_only AND @@GLOBAL.read_only";
    let sealed: Option<bool> = session.query_first(query).await?;
    let _closed = session.disconnect().await;
    sealed.ok_or(AskError::NoRow)
}

/// A password from a mounted Secret. A line's end is none of it, as people write Secrets with editors.
pub(super) fn password(file: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(file)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Where the secrets of this container are.
pub(super) fn secrets() -> &'static Path {
    Path::new(layout::INTERNAL)
}
