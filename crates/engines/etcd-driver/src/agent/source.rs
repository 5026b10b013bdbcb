//! The members to back up: which of them is asked.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::client::messages::StatusResponse;
use crate::client::{Client, Timeouts, Tls};
use futures::future::join_all;
use stateward_etcd::api::agent::{Failure, FailureReason};

use crate::agent::failure::{failure, of_etcd};

/// For the first answer, and between two pieces of a stream.
const PATIENCE: Duration = Duration::from_secs(60);
/// For the question how a member is.
const ASK: Duration = Duration::from_secs(5);

/// A member that answered.
pub(crate) struct Member {
    pub(crate) client: Client,
    /// As the task names it.
    pub(crate) endpoint: String,
    pub(crate) status: StatusResponse,
}

impl Member {
    pub(crate) fn revision(&self) -> i64 {
        self.status.header.as_ref().map_or(0, |header| header.revision)
    }

    pub(crate) fn cluster(&self) -> u64 {
        self.status.header.as_ref().map_or(0, |header| header.cluster_id)
    }

    /// The better, the larger: it knows a leader, so that it is not cut off, and has seen the most.
    fn worth(&self) -> (bool, i64) {
        (self.status.leader != 0, self.revision())
    }
}

/// The healthy member with the highest revision. One without a leader is taken only where no other answers: after a loss
/// of quorum a backup of it is all that can be had.
pub(crate) async fn best(endpoints: &[String], tls: &Path) -> Result<Member, Failure> {
    let found = all(endpoints, tls).await?;
    let best = found.into_iter().max_by_key(Member::worth);
    best.ok_or_else(|| {
        failure(
            FailureReason::EtcdUnreachable,
            "no endpoint of the cluster is named",
            false,
        )
    })
}

/// All members that answer and can serve; an error when none does.
async fn all(endpoints: &[String], tls: &Path) -> Result<Vec<Member>, Failure> {
    let tls = Certificates::read(tls);
    let asked = join_all(endpoints.iter().map(|endpoint| ask(endpoint, &tls))).await;
    let (mut members, mut problems) = (Vec::new(), Vec::new());
    for answer in asked {
        match answer {
            Ok(found) => members.extend(found),
            Err(problem) => problems.push(problem),
        }
    }
    if members.is_empty()
        && let Some(first) = problems.into_iter().next()
    {
        return Err(first);
    }
    Ok(members)
}

async fn ask(endpoint: &str, tls: &Result<Option<Tls>, String>) -> Result<Vec<Member>, Failure> {
    let clients = clients(endpoint, tls).await?;
    let statuses = join_all(clients.iter().map(Client::status)).await;
    let (mut members, mut problem) = (Vec::new(), None);
    for (client, status) in clients.into_iter().zip(statuses) {
        match status {
            // Learners refuse nearly every call.
            Ok(status) if status.is_learner => {
                let message = format!("etcd at {endpoint} is a learner: name another member");
                problem.get_or_insert(failure(FailureReason::EtcdUnhealthy, message, true));
            }
            // The alarm is the whole cluster's: nobody knows yet which of the members has the right data.
            Ok(status) if status.errors.iter().any(|error| error.contains("CORRUPT")) => {
                let message = format!(
                    "etcd at {endpoint} raised the alarm CORRUPT: no backup is taken until its members are known to have the same data and the alarm is cleared. The status of the EtcdCluster tells how far that is"
                );
                problem = Some(failure(FailureReason::EtcdCorrupt, message, true));
            }
            Ok(status) => members.push(Member {
                client: client.with_request_timeout(PATIENCE),
                endpoint: endpoint.to_owned(),
                status,
            }),
            Err(error) => problem = Some(of_etcd(&error, endpoint)),
        }
    }
    match problem {
        Some(problem) if members.is_empty() => Err(problem),
        _ => Ok(members),
    }
}

/// One client for each address that the endpoint's name stands for.
async fn clients(endpoint: &str, tls: &Result<Option<Tls>, String>) -> Result<Vec<Client>, Failure> {
    let unfit = || {
        let message = format!("\"{endpoint}\" is no client URL of etcd: write it as \"http://example-client:2379\"");
        failure(FailureReason::EndpointInvalid, message, false)
    };
    let uri: http::Uri = endpoint.parse().map_err(|_| unfit())?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(unfit)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") | None => false,
        Some(_) => return Err(unfit()),
    };
    let tls = match (secure, tls) {
        (false, _) => None,
        (true, Ok(Some(tls))) => Some(tls),
        (true, Ok(None)) => {
            let message = format!("{endpoint} needs TLS and no certificates are given: name them with clientTLSSecret");
            return Err(failure(FailureReason::SecretInvalid, message, true));
        }
        (true, Err(error)) => return Err(failure(FailureReason::SecretInvalid, error.clone(), true)),
    };
    let port = uri.port_u16().unwrap_or(2379);
    let unresolved = |error: std::io::Error| {
        let message = format!("the name {host} of {endpoint} cannot be resolved: {error}");
        failure(FailureReason::EtcdUnreachable, message, true)
    };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port))
        .await
        .map_err(unresolved)?
        .collect();
    let timeouts = Timeouts {
        connect: ASK,
        request: ASK,
    };
    addresses
        .into_iter()
        .map(|address| {
            Client::new(address, tls.map(|tls| (tls, host)), timeouts)
                .map_err(|error| failure(FailureReason::SecretInvalid, error.to_string(), true))
        })
        .collect()
}

struct Certificates;

impl Certificates {
    /// None when no secret is mounted; an error in words when it cannot be used.
    fn read(folder: &Path) -> Result<Option<Tls>, String> {
        let file = |name: &str| {
            std::fs::read(folder.join(name))
                .ok()
                .filter(|content| !content.is_empty())
        };
        let Some(ca) = file("etcd-client-ca.crt") else {
            return if folder.join("etcd-client.crt").exists() {
                Err("the secret with the client certificate has no key etcd-client-ca.crt: add it".into())
            } else {
                Ok(None)
            };
        };
        let identity = file("etcd-client.crt").zip(file("etcd-client.key"));
        let identity = identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
        Tls::new(&ca, identity).map(Some).map_err(|error| error.to_string())
    }
}
