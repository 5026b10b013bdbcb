//! What a worker keeps between reconciles: connections, and what was read. No decision rests on it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use stateward_mysql::agent;
use stateward_mysql::intent::Intent;
use stateward_mysql::names::ACCOUNT_OPERATOR;
use stateward_mysql::world::{NoReply, Ordinal, Process};
use tokio::sync::Notify;

use crate::client::agent::Agent;
use crate::client::contact::{Contact, State};
use crate::client::reply::Accounts;
use crate::client::server::Server;
use crate::client::{Error, Target};
use crate::secrets::{Passwords, Reader};

/// How long a reconcile waits for the first attempt to reach a server.
const FIRST: Duration = Duration::from_millis(100);
/// For how long a server that is not the primary may be silent unnoticed while nothing happens.
const SELDOM: Duration = Duration::from_secs(5);
/// How old the volume's numbers may be.
const VOLUME_AGE: Duration = Duration::from_secs(10);

/// Which process took which variables last.
pub(crate) type Taken = Arc<Mutex<BTreeMap<Ordinal, (Process, String)>>>;

/// What a worker keeps between reconciles.
#[derive(Default)]
pub struct Session {
    pub(crate) secrets: Reader,
    pub(crate) taken: Taken,
    links: BTreeMap<Ordinal, Link>,
    /// When a pod was first seen to be blocked, by UID and Kubernetes' reason. Times in objects are of other clocks.
    pub(crate) blocked: HashMap<(String, String), Timestamp>,
    /// What Kubernetes last said of a pending claim, by UID, and when that was read.
    pub(crate) problems: HashMap<String, (Instant, Option<String>)>,
    /// The certificate that a server presented last, and when it was looked at.
    pub(crate) presented: BTreeMap<Ordinal, (Process, String)>,
}

/// The connections to one pod.
pub(crate) struct Link {
    made_for: String,
    pub(crate) server: Arc<Server>,
    pub(crate) agent: Option<Arc<Agent>>,
    contact: Contact,
    /// What its accounts were when they were last read.
    pub(crate) accounts: Option<(Process, Accounts)>,
    /// Since when questions were not answered.
    silent: Option<Timestamp>,
    /// What the agent said last.
    pub(crate) said: Option<(Instant, agent::State)>,
}

/// What actions need of a member beside the world.
pub(crate) struct Reach {
    pub(crate) server: Arc<Server>,
    pub(crate) agent: Option<Arc<Agent>>,
    pub(crate) accounts: Option<(Process, Accounts)>,
    /// The pod that it is in.
    pub(crate) pod: String,
}

/// What connecting to members takes beside their addresses.
pub(crate) struct Access<'a> {
    pub(crate) passwords: &'a Passwords,
    /// The CA of the servers' certificates, with the version of the Secret it is from.
    pub(crate) ca: Option<(&'a str, &'a Arc<Vec<u8>>)>,
    pub(crate) waker: &'a Arc<Notify>,
}

impl Session {
    /// The connections to a member's pod, made anew when the pod, its address or its Secrets are others. The error says why
    /// there can be none.
    pub(crate) fn link(
        &mut self,
        intent: &Intent,
        member: Ordinal,
        pod: &Pod,
        access: &Access<'_>,
        primary: bool,
    ) -> Result<&mut Link, String> {
        let Access { passwords, ca, waker } = *access;
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        let address: IpAddr = address
            .and_then(|address| address.parse().ok())
            .ok_or("its pod has no address")?;
        let password = passwords
            .of(ACCOUNT_OPERATOR)
            .ok_or("the Secret with Stateward's password lacks it")?;
        let old_password = passwords.other(ACCOUNT_OPERATOR);
        let speaks_tls = mounts_certificates(pod);
        let ca = ca.filter(|_| speaks_tls);
        if speaks_tls && ca.is_none() {
            return Err("the Secret with the certificates is not there".into());
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let token = passwords.token();
        let made_for = format!(
            "{uid} {address} {} {}",
            ca.map_or("", |(version, _)| version),
            stateward_core::manifests::hash(&[&*password, old_password.as_deref().unwrap_or_default()])
        );
        let moment = if primary { intent.failover_after / 2 } else { SELDOM };
        let is_same = self.links.get(&member).is_some_and(|link| link.made_for == made_for);
        if !is_same {
            let target = Target {
                address,
                host: intent.host(member),
                ca: ca.map(|(_, ca)| ca.clone()),
                password,
                old_password,
            };
            let agent = token.and_then(|token| Agent::new(&target, token).ok());
            let link = Link {
                made_for,
                contact: Contact::new(target.clone(), moment, Arc::clone(waker)),
                server: Server::new(target),
                agent: agent.map(Arc::new),
                accounts: None,
                silent: None,
                said: None,
            };
            self.links.insert(member, link);
        }
        let link = self.links.get_mut(&member).ok_or("it is gone")?;
        link.contact.set_moment(moment);
        Ok(link)
    }

    /// Closes the connections to members that have no pod that runs.
    pub(crate) fn keep_only(&mut self, is_there: impl Fn(Ordinal) -> bool) {
        self.links.retain(|member, _| is_there(*member));
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|member, _| is_there(*member));
    }

    /// All connections.
    pub(crate) fn links(&mut self) -> impl Iterator<Item = (Ordinal, &mut Link)> {
        self.links.iter_mut().map(|(member, link)| (*member, link))
    }

    /// The variables that a process took last.
    pub(crate) fn config_of(&self, member: Ordinal, process: &Process) -> Option<String> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, hash) = taken.get(&member)?;
        (known == process).then(|| hash.clone())
    }
}

impl Link {
    /// Whether its server is worth a question; else why not.
    pub(crate) async fn open(&mut self) -> Result<(), NoReply> {
        match self.contact.first(FIRST).await {
            State::Open => Ok(()),
            State::Unknown => Err(self.no_reply("it has not replied yet")),
            State::Closed(mut closed) => {
                closed.since = self.silent.into_iter().chain(closed.since).min();
                self.silent = closed.since;
                Err(closed)
            }
        }
    }

    /// It did not answer a question.
    pub(crate) fn failed(&mut self, error: &Error) -> NoReply {
        self.no_reply(&error.to_string())
    }

    fn no_reply(&mut self, reason: &str) -> NoReply {
        let since = *self.silent.get_or_insert_with(Timestamp::now);
        NoReply {
            since: Some(since),
            reason: reason.to_owned(),
        }
    }

    /// It answered.
    pub(crate) fn replied(&mut self) {
        self.silent = None;
    }

    /// What the agent says of the volume, no older than some seconds.
    pub(crate) fn knows_volume(&self) -> bool {
        self.said.as_ref().is_some_and(|(at, _)| at.elapsed() < VOLUME_AGE)
    }

    /// For actions.
    pub(crate) fn reach(&self, pod: &Pod) -> Reach {
        Reach {
            server: self.server.clone(),
            agent: self.agent.clone(),
            accounts: self.accounts.clone(),
            pod: pod.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// Whether this pod's mysqld and agent speak TLS: by what it was made with, which may not be what the spec says now.
fn mounts_certificates(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| volume.name == "tls" && volume.secret.is_some())
}
