//! The members of a cluster that is being taken over: they have no pods that are ours and are asked by the endpoints that the user gave.

use std::net::SocketAddr;
use std::time::Duration;

use stateward_api::EtcdCluster;
use stateward_etcd::{Client, Timeouts};
use stateward_plan::etcd::manifests::tls_secrets;
use stateward_plan::etcd::members::owner;
use stateward_plan::etcd::{Intent, MemberName, Voice, World};

use crate::Shared;
use crate::caches::Key;
use crate::secrets::SecretReader;

const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    request: Duration::from_secs(5),
};

/// Whether they have to be heard: not any more when one of ours answers and lists nobody else.
pub(crate) fn are_needed(intent: &Intent, world: &World) -> bool {
    let mut ours = world.voices.values().filter_map(|voice| match voice {
        Voice::Answered(answer) => Some(answer),
        Voice::Silent(_) => None,
    });
    !intent.adopt.is_empty()
        && !ours.any(|answer| {
            !answer.learner && answer.leader.is_some() && answer.list.iter().all(|line| owner(intent, line).is_some())
        })
}

/// A connection to each endpoint, by its URL, or why there is none.
pub(crate) async fn connect(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    intent: &Intent,
    secrets: &mut SecretReader,
) -> Vec<(MemberName, Result<Client, String>)> {
    let mut all = Vec::new();
    for url in &intent.adopt {
        all.push((MemberName(url.clone()), to(shared, key, cluster, url, secrets).await));
    }
    all
}

async fn to(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    url: &str,
    secrets: &mut SecretReader,
) -> Result<Client, String> {
    let (host, port, tls) = parse(url).ok_or_else(|| "write it as http://HOST:2379 or https://HOST:2379".to_owned())?;
    let tls = match tls_secrets(cluster).client {
        _ if !tls => None,
        Some(secret) => Some(secrets.client_certificate(shared, key, &secret, None).await?.0),
        None => return Err("it speaks TLS, and spec.TLS names no certificate to connect with".into()),
    };
    let address = tokio::time::timeout(Duration::from_secs(1), tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| "its name is not resolved in time".to_owned())?
        .map_err(|error| format!("its name is not known: {error}"))?
        .find(SocketAddr::is_ipv4)
        .ok_or_else(|| "its name has no address".to_owned())?;
    Client::new(address, tls.as_ref().map(|tls| (tls, host)), TIMEOUTS).map_err(|error| error.to_string())
}

/// Host, port and whether with TLS.
fn parse(url: &str) -> Option<(&str, u16, bool)> {
    let (rest, tls) = match url.strip_prefix("https://") {
        Some(rest) => (rest, true),
        None => (url.strip_prefix("http://")?, false),
    };
    let rest = rest.trim_end_matches('/');
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (rest, 2379),
    };
    (!host.is_empty() && !host.contains('/')).then_some((host, port, tls))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn endpoints_are_urls() {
        assert_eq!(
            parse("http://etcd-0.etcd.shop.svc:2379"),
            Some(("etcd-0.etcd.shop.svc", 2379, false))
        );
        assert_eq!(parse("https://10.0.0.7/"), Some(("10.0.0.7", 2379, true)));
        assert_eq!(parse("etcd-0:2379"), None);
        assert_eq!(parse("http://:2379"), None);
        assert_eq!(parse("http://a/b:1"), None);
    }
}
