//! What can go wrong with a call, sorted by what the caller does about it.

use tonic::{Code, Status};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody answered at that address, or not with this certificate, or the connection broke (then a change may have
    /// happened). This alone proves nothing about the member.
    #[error("not reached: {0}")]
    Unreachable(String),
    /// Somebody listens there, and no TLS connection comes about: a certificate, a name or a protocol that one side does not
    /// take.
    #[error("no TLS connection: {0}")]
    Handshake(String),
    /// No answer in time. A change may have happened or may still happen: look before doing it again.
    #[error("no answer in time: {0}")]
    TimedOut(String),
    /// The member answers, the cluster does not: no leader, or no quorum in time. A change may have happened.
    #[error("no quorum: {0}")]
    NoQuorum(String),
    /// Refused for now: the same request is expected to succeed later.
    #[error("not yet: {0}")]
    NotYet(String),
    /// The member is not in the list.
    #[error("member not found")]
    MemberNotFound,
    /// A member with this ID or peer URL is in the list already.
    #[error("already there: {0}")]
    AlreadyThere(String),
    /// The member to promote votes already.
    #[error("not a learner")]
    NotALearner,
    /// The quota is used up: only reads and deletes work.
    #[error("out of space: {0}")]
    NoSpace(String),
    /// The server wants a user or a right that we do not have.
    #[error("not permitted: {0}")]
    Permission(String),
    /// Authentication is off in this cluster.
    #[error("authentication is not enabled")]
    AuthNotEnabled,
    /// The server does not know this call: it is too old.
    #[error("not known to this version of etcd: {0}")]
    Unsupported(String),
    /// Any other refusal.
    #[error("refused: {0}")]
    Refused(String),
}

impl Error {
    /// etcd says no for now; the next round may try again without a word of alarm.
    pub fn is_for_now(&self) -> bool {
        matches!(self, Self::NotYet(_) | Self::NoQuorum(_))
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let words = words(&status);
        let says = |text: &str| status.message().contains(text);
        if let Some(why) = tls_failure(&status) {
            return Self::Handshake(why);
        }
        match status.code() {
            Code::NotFound if says("member not found") => Self::MemberNotFound,
            _ if says("member ID already exist") || says("Peer URLs already exists") => Self::AlreadyThere(words),
            _ if says("can only promote a learner member which is in sync") => Self::NotYet(words),
            _ if says("can only promote a learner member") => Self::NotALearner,
            _ if says("unhealthy cluster")
                || says("too many learner members")
                || says("not enough started members")
                || says("not leader")
                || says("leader changed")
                || says("too many requests")
                || says("bad leader transferee") =>
            {
                Self::NotYet(words)
            }
            _ if says("no leader") || says("etcdserver: request timed out") || says("raft: stopped") => {
                Self::NoQuorum(words)
            }
            _ if says("database space exceeded") => Self::NoSpace(words),
            _ if says("authentication is not enabled") => Self::AuthNotEnabled,
            _ if says("user name is empty") || says("invalid auth token") => Self::Permission(words),
            Code::PermissionDenied | Code::Unauthenticated => Self::Permission(words),
            Code::Unimplemented => Self::Unsupported(words),
            // tonic's own word for the timeout that the request carries
            _ if says("Timeout expired") => Self::TimedOut(words),
            Code::Cancelled if has_transport_source(&status) => Self::Unreachable(words),
            Code::DeadlineExceeded | Code::Cancelled => Self::TimedOut(words),
            Code::Unavailable if !says("etcdserver:") => Self::Unreachable(words),
            Code::Unknown if !says("etcdserver:") && has_transport_source(&status) => Self::Unreachable(words),
            _ => Self::Refused(words),
        }
    }
}

/// What TLS itself says, wherever it is in the chain. An `io::Error` does not show what it wraps as its source.
pub(crate) fn tls_failure(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let of_tls = error
            .downcast_ref::<rustls::Error>()
            .or_else(|| wrapped.and_then(|inner| inner.downcast_ref()));
        if let Some(tls) = of_tls {
            return Some(crate::client::handshake::reason(tls));
        }
        next = error.source();
    }
    None
}

fn has_transport_source(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// The message with what lies beneath it: a transport error says only "transport error" by itself.
fn words(status: &Status) -> String {
    let mut words = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let next = error.to_string();
        if !words.contains(&next) {
            if !words.is_empty() {
                words.push_str(": ");
            }
            words.push_str(&next);
        }
        source = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_sorted_by_what_to_do() {
        let sorted = |code, message: &str| Error::from(Status::new(code, message));
        let learner = "etcdserver: can only promote a learner member which is in sync with leader";
        assert!(sorted(Code::FailedPrecondition, learner).is_for_now());
        assert!(sorted(Code::Unavailable, "etcdserver: unhealthy cluster").is_for_now());
        assert!(sorted(Code::Unavailable, "etcdserver: no leader").is_for_now());
        assert_eq!(
            sorted(
                Code::FailedPrecondition,
                "etcdserver: can only promote a learner member"
            ),
            Error::NotALearner
        );
        assert_eq!(
            sorted(Code::NotFound, "etcdserver: member not found"),
            Error::MemberNotFound
        );
        assert!(matches!(
            sorted(Code::Unavailable, "connection refused"),
            Error::Unreachable(_)
        ));
        assert!(matches!(
            sorted(Code::Unimplemented, "unknown method Downgrade"),
            Error::Unsupported(_)
        ));
        assert!(matches!(
            sorted(Code::InvalidArgument, "etcdserver: user name is empty"),
            Error::Permission(_)
        ));
    }
}
