//! Errors of the layers below, as failures in users' words.

use crate::client::{Error as EtcdError, SnapshotError};
use stateward_backup::{Error as StoreError, KeyError, PutError, Reason, UnpackError};
use stateward_etcd::api::agent::{Failure, FailureReason};

pub(crate) fn failure(reason: FailureReason, message: impl Into<String>, retry: bool) -> Failure {
    Failure {
        reason,
        message: message.into(),
        retry,
    }
}

pub(crate) fn of_store(error: &StoreError) -> Failure {
    failure(
        of_store_reason(error.reason),
        error.message.clone(),
        error.reason.retry(),
    )
}

fn of_store_reason(reason: Reason) -> FailureReason {
    match reason {
        Reason::AccessDenied => FailureReason::AccessDenied,
        Reason::BucketMissing => FailureReason::BucketMissing,
        Reason::BackupMissing => FailureReason::BackupMissing,
        Reason::StoreUnreachable => FailureReason::StoreUnreachable,
        Reason::StoreFull => FailureReason::StoreFull,
        Reason::TimedOut => FailureReason::TimedOut,
        Reason::Interrupted => FailureReason::Interrupted,
        Reason::SecretInvalid => FailureReason::SecretInvalid,
        Reason::StoreInvalid => FailureReason::StoreInvalid,
        Reason::StoreFailed => FailureReason::StoreFailed,
    }
}

pub(crate) fn of_key(error: &KeyError) -> Failure {
    failure(FailureReason::KeyInvalid, error.to_string(), true)
}

pub(crate) fn of_etcd(error: &EtcdError, endpoint: &str) -> Failure {
    let reason = match error {
        EtcdError::Unreachable(_) | EtcdError::Broken(_) => FailureReason::EtcdUnreachable,
        EtcdError::TimedOut(_) => FailureReason::TimedOut,
        EtcdError::Permission(_) => FailureReason::EtcdDenied,
        _ => FailureReason::EtcdFailed,
    };
    failure(reason, format!("etcd at {endpoint}: {error}"), true)
}

pub(crate) fn of_snapshot(error: &SnapshotError, endpoint: &str) -> Failure {
    match error {
        SnapshotError::Broken(error) => of_etcd(error, endpoint),
        other => failure(
            FailureReason::SnapshotIncomplete,
            format!("etcd at {endpoint}: {other}"),
            true,
        ),
    }
}

pub(crate) fn of_put<E>(error: PutError<E>, source: impl FnOnce(E) -> Failure) -> Failure {
    match error {
        PutError::Source(error) => source(error),
        PutError::Store(error) => of_store(&error),
    }
}

pub(crate) fn interrupted(ended: &impl std::fmt::Display) -> Failure {
    failure(FailureReason::Interrupted, format!("the work broke off: {ended}"), true)
}

/// A file that was read and is no good. `retry` is for the network; another reading of a corrupt file changes nothing.
pub(crate) fn of_unpack(error: &UnpackError<StoreError>, location: &str) -> Failure {
    match error {
        UnpackError::Source(error) => of_store(error),
        UnpackError::KeyMissing => failure(FailureReason::KeyMissing, format!("{location}: {error}"), false),
        UnpackError::WrongKey => failure(FailureReason::WrongKey, format!("{location}: {error}"), false),
        UnpackError::Harmed(_) => corrupt(location, error),
    }
}

pub(crate) fn corrupt(location: &str, what: impl std::fmt::Display) -> Failure {
    failure(
        FailureReason::BackupCorrupt,
        format!("{location} is no good backup: {what}; choose another one"),
        false,
    )
}

pub(crate) fn of_io(error: &std::io::Error, doing: &str) -> Failure {
    let reason = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => FailureReason::VolumeFull,
        _ => FailureReason::VolumeFailed,
    };
    failure(reason, format!("{doing}: {error}"), true)
}
