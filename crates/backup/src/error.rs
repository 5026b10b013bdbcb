//! What can go wrong with a store, sorted by what its owner does about it.

use std::error::Error as _;

/// Why a store did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The credentials are wrong, or lack a right.
    AccessDenied,
    /// There is no such bucket, container or folder.
    BucketMissing,
    /// There is no such file.
    BackupMissing,
    /// Nobody answers.
    StoreUnreachable,
    /// No room is left.
    StoreFull,
    /// It answers too slowly.
    TimedOut,
    /// We were told to stop.
    Interrupted,
    /// The secret does not hold what the store needs.
    SecretInvalid,
    /// The store block cannot be used as it is written.
    StoreInvalid,
    /// Anything else that the store said.
    StoreFailed,
}

impl Reason {
    /// Whether trying again may help without anybody changing the object. What a person must mend outside of it
    /// (rights, a bucket, room) is tried again too: nobody should have to touch the object afterwards.
    pub fn retry(self) -> bool {
        !matches!(self, Self::BackupMissing | Self::StoreInvalid)
    }
}

/// An error of a store, in words that say what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind it is.
    pub reason: Reason,
    /// A sentence.
    pub message: String,
}

impl Error {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// We were told to stop.
    pub fn interrupted() -> Self {
        Self::new(Reason::Interrupted, "stopped before the work was done")
    }

    /// From what object_store says, while doing something with a file or prefix at a place.
    pub(crate) fn of(error: &object_store::Error, doing: &str, place: &str) -> Self {
        let words = chain(error);
        let reason = sort(error, &words);
        let advice = match reason {
            Reason::AccessDenied => "check the credentials in the secret and the rights they carry",
            Reason::BucketMissing => "create it, or correct the path",
            Reason::BackupMissing => "correct the path",
            Reason::StoreUnreachable => "check the endpoint and that the store runs",
            Reason::StoreFull => "make room there, or keep fewer backups",
            Reason::TimedOut => "check the network and the load of the store",
            _ => "see what the store says",
        };
        let what = match reason {
            Reason::AccessDenied => "the store denies access",
            Reason::BucketMissing => "there is no such bucket, container or folder",
            Reason::BackupMissing => "there is no such file",
            Reason::StoreUnreachable => "the store cannot be reached",
            Reason::StoreFull => "the store has no room left",
            Reason::TimedOut => "the store does not answer in time",
            _ => "the store failed",
        };
        Self::new(
            reason,
            format!("{doing} {place}: {what}; {advice} ({})", shorten(&words)),
        )
    }
}

/// Every layer's words, without those that the layer above has said already.
fn chain(error: &object_store::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        let text = next.to_string();
        if !words.contains(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        source = next.source();
    }
    words
}

/// Answers in XML are long; a termination message is not.
fn shorten(words: &str) -> String {
    let flat = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match flat.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &flat[..end]),
        None => flat,
    }
}

fn io_kind(error: &object_store::Error) -> Option<std::io::ErrorKind> {
    let mut source = error.source();
    while let Some(next) = source {
        if let Some(io) = next.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        source = next.source();
    }
    None
}

fn sort(error: &object_store::Error, words: &str) -> Reason {
    use object_store::Error as E;
    let says = |any: &[&str]| any.iter().any(|text| words.contains(text));
    // The stores' own codes come first: S3 hides a missing bucket behind 404 and wrong keys behind 403 and 400.
    if says(&[
        "NoSuchBucket",
        "ContainerNotFound",
        "specified bucket does not exist",
        "InvalidBucketName",
    ]) {
        return Reason::BucketMissing;
    }
    if says(&[
        "XMinioStorageFull",
        "InsufficientStorage",
        "507 ",
        "QuotaExceeded",
        "No space left",
        "Disk quota exceeded",
    ]) {
        return Reason::StoreFull;
    }
    if says(&[
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "AccessDenied",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "ExpiredToken",
        "InvalidToken",
        "InvalidSecurity",
        "401 Unauthorized",
        "403 Forbidden",
    ]) {
        return Reason::AccessDenied;
    }
    match error {
        E::NotFound { .. } => return Reason::BackupMissing,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => return Reason::AccessDenied,
        E::InvalidPath { .. } => return Reason::StoreInvalid,
        _ => {}
    }
    match io_kind(error) {
        Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) => return Reason::StoreFull,
        Some(std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem) => {
            return Reason::AccessDenied;
        }
        Some(std::io::ErrorKind::TimedOut) => return Reason::TimedOut,
        _ => {}
    }
    let small = words.to_lowercase();
    let says = |any: &[&str]| any.iter().any(|text| small.contains(text));
    // Not "timeout" alone: every error of object_store names its retry_timeout.
    if says(&["timed out", "request timeout", "requesttimeout", "gateway timeout"]) {
        return Reason::TimedOut;
    }
    if says(&[
        "error sending request",
        "connect",
        "dns error",
        "connection",
        "request or response body",
        "503 service unavailable",
        "slowdown",
        "slow down",
        "tls",
        "certificate",
    ]) {
        return Reason::StoreUnreachable;
    }
    Reason::StoreFailed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_stores_are_sorted() {
        let sorted = |words: &str| {
            let source = std::io::Error::other(words.to_owned()).into();
            Error::of(&object_store::Error::Generic { store: "S3", source }, "writing", "b/k").reason
        };
        let refused = "after 4 retries, retry_timeout: 30s - HTTP error: tcp connect error: Connection refused";
        assert_eq!(sorted(refused), Reason::StoreUnreachable);
        assert_eq!(sorted("HTTP error: operation timed out"), Reason::TimedOut);
        assert_eq!(
            sorted("507 Insufficient Storage: <Code>XMinioStorageFull</Code>"),
            Reason::StoreFull
        );
        assert_eq!(sorted("<Code>SignatureDoesNotMatch</Code>"), Reason::AccessDenied);
        assert_eq!(sorted("<Code>NoSuchBucket</Code>"), Reason::BucketMissing);
        assert_eq!(sorted("<Code>MalformedXML</Code>"), Reason::StoreFailed);
    }
}
