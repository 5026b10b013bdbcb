//! Errors of the layers below, as failures in users' words.

use crate::client::{Error as EtcdError, SnapshotError};
use stateward_backup::{Error as StoreError, KeyError, PutError, UnpackError};
use stateward_etcd::api::agent::Failure;

pub(crate) fn failure(reason: &str, message: impl Into<String>, retry: bool) -> Failure {
    Failure {
        reason: reason.into(),
        message: message.into(),
        retry,
    }
}

pub(crate) fn of_store(error: &StoreError) -> Failure {
    failure(error.reason.word(), error.message.clone(), error.reason.retry())
}

pub(crate) fn of_key(error: &KeyError) -> Failure {
    failure("KeyInvalid", error.to_string(), true)
}

pub(crate) fn of_etcd(error: &EtcdError, endpoint: &str) -> Failure {
    let reason = match error {
        EtcdError::Unreachable(_) => "EtcdUnreachable",
        EtcdError::TimedOut(_) => "TimedOut",
        EtcdError::Permission(_) => "EtcdDenied",
        _ => "EtcdFailed",
    };
    failure(reason, format!("etcd at {endpoint}: {error}"), true)
}

pub(crate) fn of_snapshot(error: &SnapshotError, endpoint: &str) -> Failure {
    match error {
        SnapshotError::Broken(error) => of_etcd(error, endpoint),
        other => failure("SnapshotIncomplete", format!("etcd at {endpoint}: {other}"), true),
    }
}

pub(crate) fn of_put<E>(error: PutError<E>, source: impl FnOnce(E) -> Failure) -> Failure {
    match error {
        PutError::Source(error) => source(error),
        PutError::Store(error) => of_store(&error),
    }
}

pub(crate) fn interrupted(ended: &impl std::fmt::Display) -> Failure {
    failure("Interrupted", format!("the work broke off: {ended}"), true)
}

/// A file that was read and is no good. `retry` is for the network; another reading of a corrupt file changes nothing.
pub(crate) fn of_unpack(error: &UnpackError<StoreError>, location: &str) -> Failure {
    match error {
        UnpackError::Source(error) => of_store(error),
        UnpackError::KeyMissing => failure("KeyMissing", format!("{location}: {error}"), false),
        UnpackError::WrongKey => failure("WrongKey", format!("{location}: {error}"), false),
        UnpackError::Harmed(_) => corrupt(location, error),
    }
}

pub(crate) fn corrupt(location: &str, what: impl std::fmt::Display) -> Failure {
    failure(
        "BackupCorrupt",
        format!("{location} is no good backup: {what}; choose another one"),
        false,
    )
}

pub(crate) fn of_io(error: &std::io::Error, doing: &str) -> Failure {
    let reason = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => "VolumeFull",
        _ => "VolumeFailed",
    };
    failure(reason, format!("{doing}: {error}"), true)
}
