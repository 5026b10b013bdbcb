//! Unpacking a backup without Kubernetes.

use futures::StreamExt;
use stateward_backup::Key;
use tokio::io::AsyncWriteExt;

/// Unpacks standard input to standard output; an error in words.
pub async fn unpack(key: Option<&[u8]>) -> Result<(), String> {
    let key = key.map(Key::read).transpose().map_err(|error| error.to_string())?;
    let packed = tokio_util::io::ReaderStream::with_capacity(tokio::io::stdin(), 1 << 20);
    let packed = packed.map(|piece| piece.map_err(|error| error.to_string()));
    let mut pieces = Box::pin(stateward_backup::unpack(packed, key));
    let mut out = tokio::io::stdout();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| error.to_string())?;
        out.write_all(&piece).await.map_err(|error| error.to_string())?;
    }
    out.flush().await.map_err(|error| error.to_string())
}
