//! Connections to members, kept by the cluster's loop for as long as the pod and its certificates are the same.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::client::{Client, Error, Timeouts, ask};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use stateward_etcd::api::names;
use stateward_etcd::cluster::{Intent, MemberName, NoReply, NoReplyKind};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::Shared;
use crate::secrets::SecretReader;
use stateward_runtime::Key;

/// For connecting, and for changes that etcd takes its time for.
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    request: Duration::from_secs(5),
};

/// How long a round waits for a member that has answered on this connection before, or should by its pod's state.
const PATIENCE: Duration = Duration::from_secs(1);
/// And for one that never answered and is not ready, or is stopping. The first word of one that starts is awaited anyway.
const PATIENCE_WITH_NEW: Duration = Duration::from_millis(50);
/// How soon a silent member is asked again at first, and after a while.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The connections of one cluster.
#[derive(Default)]
pub(crate) struct Connections {
    /// The cluster's loop is called here when a silent member speaks.
    loop_of_cluster: Arc<Notify>,
    open: HashMap<MemberName, Open>,
}

struct Open {
    /// What it was made for: pod, address and certificates.
    made_for: String,
    client: Client,
    has_answered: bool,
    /// It was silent when last asked.
    awaited: Option<Awaited>,
}

/// A silent member whose next word is awaited beside the rounds, so that it holds nobody up and is heard at once.
struct Awaited {
    why: Arc<Mutex<NoReply>>,
    task: AbortOnDropHandle<()>,
}

impl Awaited {
    fn new(client: Client, why: NoReply, loop_of_cluster: Arc<Notify>) -> Self {
        let why = Arc::new(Mutex::new(why));
        let latest = why.clone();
        let task = async move {
            let client = client.with_request_timeout(PATIENCE);
            let (mut pause, longest) = RETRY;
            // The very question of the rounds: what it is not answered, they are not either.
            while let Err(error) = ask(&client).await {
                keep(&latest, why_no_reply(&error));
                tokio::time::sleep(pause).await;
                pause = pause.mul_f64(1.05).min(longest);
            }
            loop_of_cluster.notify_one();
        };
        Self {
            why,
            task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }
}

impl Connections {
    /// The worker that is called when a silent member speaks.
    pub(crate) fn wake(&mut self, worker: &Arc<Notify>) {
        self.loop_of_cluster = worker.clone();
    }

    /// The connection to a member's pod, or why there can be none.
    pub(crate) async fn to(
        &mut self,
        shared: &Shared,
        key: &Key,
        intent: &Intent,
        member: &MemberName,
        pod: &core::Pod,
        secrets: &mut SecretReader,
    ) -> Result<Client, NoReply> {
        let not_reached = |words: &str| NoReply::new(NoReplyKind::NotReached, words);
        let cannot_ask = |words: String| NoReply::new(NoReplyKind::CannotAsk, words);
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        let ip: IpAddr = ip
            .and_then(|ip| ip.parse().ok())
            .ok_or_else(|| not_reached("its pod has no address"))?;
        let address = SocketAddr::new(ip, u16::try_from(names::CLIENT_PORT).unwrap_or(2379));
        let tls = if speaks_tls(pod) {
            let secret =
                client_secret(pod).ok_or_else(|| cannot_ask("its pod names no Secret to connect with".to_owned()))?;
            let owner = mounts_ours(pod).then_some(intent.uid.0.as_str());
            let certificate = secrets.client_certificate(shared, key, &secret, owner).await;
            Some(certificate.map_err(cannot_ask)?)
        } else {
            None
        };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let version = tls.as_ref().map_or("", |(_, version)| version.as_str());
        let made_for = format!("{uid} {address} {version}");
        if let Some(open) = self.open.get(member)
            && open.made_for == made_for
        {
            return Ok(open.client.clone());
        }
        let host = intent.host(member);
        let tls = tls.as_ref().map(|(tls, _)| (tls, host.as_str()));
        let client = Client::new(address, tls, TIMEOUTS).map_err(|error| cannot_ask(error.to_string()))?;
        let open = Open {
            made_for,
            client: client.clone(),
            has_answered: false,
            awaited: None,
        };
        self.open.insert(member.clone(), open);
        Ok(client)
    }

    /// How long to wait for a member's answer about itself; `should_answer` by the state of its pod.
    pub(crate) fn patience(&self, member: &MemberName, should_answer: bool) -> Duration {
        match self.open.get(member) {
            Some(open) if !open.has_answered && !should_answer => PATIENCE_WITH_NEW,
            _ => PATIENCE,
        }
    }

    /// Why a member need not be asked: it was silent, and has not spoken since.
    pub(crate) fn why_no_reply(&mut self, member: &MemberName) -> Option<NoReply> {
        let open = self.open.get_mut(member)?;
        if open.awaited.as_ref()?.task.is_finished() {
            open.awaited = None;
            open.has_answered = true;
        }
        let why = &open.awaited.as_ref()?.why;
        Some(why.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Remembers whether a member answered, or why not. The connection itself is kept: it mends itself, and a frozen member
    /// that comes back is heard on it.
    pub(crate) fn heard(&mut self, member: &MemberName, silent: Option<&NoReply>) {
        if let Some(open) = self.open.get_mut(member) {
            open.has_answered |= silent.is_none();
            open.awaited =
                silent.map(|why| Awaited::new(open.client.clone(), why.clone(), self.loop_of_cluster.clone()));
        }
    }

    /// Lets go of a member whose pod is stopping. An etcd that ends waits a second for connections that nobody closes.
    pub(crate) fn close(&mut self, member: &MemberName) {
        self.open.remove(member);
    }

    /// Forgets members that are gone.
    pub(crate) fn keep_only(&mut self, is_there: impl Fn(&MemberName) -> bool) {
        self.open.retain(|member, _| is_there(member));
    }
}

/// Whether this pod's etcd serves clients with TLS: by what it was started with, which may not be what the spec says now.
fn speaks_tls(pod: &core::Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut arguments = containers
        .filter(|container| container.name == names::CONTAINER)
        .flat_map(|container| {
            container
                .command
                .iter()
                .flatten()
                .chain(container.args.iter().flatten())
        });
    arguments.any(|argument| argument.starts_with("--listen-client-urls=https"))
}

/// The Secret with the operator's certificate, as this pod mounts it.
fn client_secret(pod: &core::Pod) -> Option<String> {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.find(|volume| volume.name == "etcd-client-tls")?;
    volume.secret.as_ref()?.secret_name.clone()
}

/// Whether this pod mounts Secrets that Stateward wrote: those come with the pod's own CA files (see the manifests' `trusting`).
fn mounts_ours(pod: &core::Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| volume.name == "member-server-tls" && volume.projected.is_some())
}

/// Why a member was silent, in words that do not change from one time to the next: they reach the status.
pub(crate) fn why_no_reply(error: &Error) -> NoReply {
    let kind = match error {
        Error::Handshake(_) => NoReplyKind::Handshake,
        Error::Permission(_) => NoReplyKind::NotPermitted,
        Error::Refused(_) | Error::Unsupported(_) => NoReplyKind::Unusable,
        Error::TimedOut(_) | Error::Broken(_) => NoReplyKind::TimedOut,
        Error::Unreachable(_)
        | Error::NoQuorum(_)
        | Error::NotYet(_)
        | Error::MemberNotFound
        | Error::AlreadyThere(_)
        | Error::NotALearner
        | Error::NoSpace(_)
        | Error::AuthNotEnabled => NoReplyKind::NotReached,
    };
    let no_reply = "it accepts connections and does not reply in time";
    let words = match error {
        Error::TimedOut(_) => no_reply.to_owned(),
        Error::Broken(why) if why.contains("did not answer the TLS handshake") => no_reply.to_owned(),
        Error::Broken(_) => "it accepts connections and does not reply as etcd does".to_owned(),
        Error::Unreachable(why) if why.contains("onnection refused") => "connection refused".to_owned(),
        Error::Unreachable(why) if why.contains("did not accept a connection") => "no connection in time".to_owned(),
        error => error.to_string(),
    };
    NoReply {
        kind,
        words,
        since: Some(Timestamp::now()),
    }
}

/// Keeps the latest failure. One of the same kind as before began when it did before.
fn keep(latest: &Mutex<NoReply>, now: NoReply) {
    let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
    let since = latest.since.filter(|_| now.kind == latest.kind).or(now.since);
    *latest = NoReply { since, ..now };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection to a port that accepts and never says a word, as that of an etcd that is starting.
    async fn to_a_mute() -> (tokio::net::TcpListener, Connections, MemberName) {
        let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let member = MemberName("mute".into());
        let mut connections = Connections::default();
        let open = Open {
            made_for: String::new(),
            client: Client::new(mute.local_addr().unwrap(), None, TIMEOUTS).unwrap(),
            has_answered: false,
            awaited: None,
        };
        connections.open.insert(member.clone(), open);
        (mute, connections, member)
    }

    #[tokio::test]
    async fn a_silent_member_is_not_asked_by_rounds_until_it_spoke() {
        // Given a member that was silent,
        let (_mute, mut connections, member) = to_a_mute().await;
        assert_eq!(connections.why_no_reply(&member), None);
        let silent = NoReply::new(NoReplyKind::TimedOut, "no reply in time");
        connections.heard(&member, Some(&silent));
        // then rounds have its silence at hand,
        assert!(
            connections
                .why_no_reply(&member)
                .is_some_and(|now| now.is_same(&silent))
        );
        // and when it has spoken they ask it.
        connections.heard(&member, None);
        assert_eq!(connections.why_no_reply(&member), None);
    }

    #[tokio::test]
    async fn an_open_port_that_does_not_reply_is_told_apart_from_a_closed_one() {
        // Given a port that accepts connections and never replies, and one that is closed,
        let (mute, mut connections, member) = to_a_mute().await;
        let client = |address| {
            let client = Client::new(address, None, TIMEOUTS).unwrap();
            client.with_request_timeout(PATIENCE_WITH_NEW)
        };
        let no_reply = ask(&client(mute.local_addr().unwrap())).await.unwrap_err();
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        let refused = ask(&client(address)).await.unwrap_err();
        // then only the second one is as a member that has not started;
        assert_eq!(why_no_reply(&refused).kind, NoReplyKind::NotReached, "{refused}");
        assert_eq!(why_no_reply(&no_reply).kind, NoReplyKind::TimedOut, "{no_reply}");
        // and while one is asked again and again, the time since when it is so stays.
        let first = why_no_reply(&no_reply);
        connections.heard(&member, Some(&first));
        keep(
            &connections.open[&member].awaited.as_ref().unwrap().why,
            why_no_reply(&Error::Broken("reset".into())),
        );
        let latest = connections.why_no_reply(&member).unwrap();
        assert_eq!((latest.kind, latest.since), (NoReplyKind::TimedOut, first.since));
    }

    #[tokio::test]
    async fn one_that_spoke_is_given_time_so_that_a_slow_one_is_heard() {
        // Given a new member that was not heard in the short time that new ones get,
        let (_mute, mut connections, member) = to_a_mute().await;
        assert_eq!(connections.patience(&member, false), PATIENCE_WITH_NEW);
        assert_eq!(connections.patience(&member, true), PATIENCE);
        connections.heard(&member, Some(&NoReply::new(NoReplyKind::TimedOut, "no reply in time")));
        // when it answers the one who waits for it,
        let spoke = AbortOnDropHandle::new(tokio::spawn(async {}));
        while !spoke.is_finished() {
            tokio::task::yield_now().await;
        }
        connections
            .open
            .get_mut(&member)
            .unwrap()
            .awaited
            .as_mut()
            .unwrap()
            .task = spoke;
        // then the next round asks it, and waits as long as for any other.
        assert_eq!(connections.why_no_reply(&member), None);
        assert_eq!(connections.patience(&member, false), PATIENCE);
    }
}
