//! The body type of every response, and reading request bodies with limits.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody};

use super::errors::{Result, Status};

/// A boxed body; errors end the connection.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Kubernetes' own limit for a request body.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;
/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

pub(crate) fn stream(chunks: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map(|chunk| chunk.map(http_body::Frame::data))).boxed_unsync()
}

/// Reads a whole request body: bounded in size and in time.
pub(crate) async fn read<B>(body: B) -> Result<Bytes>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let too_large = || {
        let text = format!("Request entity too large: limit is {MAX_BODY}");
        Status::new(413, "RequestEntityTooLarge", text)
    };
    // A body whose declared length is too large is not read.
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(e)) => Err(Status::bad_request(format!("unable to read the request body: {e}"))),
        Err(_) => Err(Status::new(408, "Timeout", "the request body did not arrive in time")),
    }
}
