//! The members of a cluster that is being taken over: they have no pods that are ours and are asked by the endpoints that the user gave.

use std::net::SocketAddr;
use std::time::Duration;

use crate::client::{Client, Timeouts};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use kube::api::ListParams;
use stateward_etcd::api::EtcdCluster;
use stateward_etcd::cluster::manifests::tls_secrets;
use stateward_etcd::cluster::members::owner;
use stateward_etcd::cluster::{Intent, MemberName, MemberProbe, NoReply, Reply, World};

use crate::Shared;
use crate::adopt_scope::Scope;
use crate::secrets::SecretReader;
use stateward_runtime::Key;

const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    request: Duration::from_secs(5),
};

/// Whether they have to be heard: not any more when one of ours answers and lists nobody else.
pub(crate) fn are_needed(intent: &Intent, world: &World) -> bool {
    let mut ours = world.probes.values().filter_map(|probe| match probe {
        MemberProbe::Reply(reply) => Some(reply),
        MemberProbe::NoReply(_) => None,
    });
    !intent.adopt.is_empty()
        && !ours.any(|reply| {
            !reply.learner && reply.leader.is_some() && reply.list.iter().all(|line| owner(intent, line).is_some())
        })
}

/// What may be connected to, as the namespace is now.
pub(crate) async fn scope<'a>(shared: &'a Shared, key: &'a Key) -> Result<Scope<'a>, kube::Error> {
    // What the API server has in memory is new enough: an address that a pod of the namespace had a moment ago.
    let cached = ListParams::default().match_any();
    let (pods, services) = (
        Api::<Pod>::namespaced(shared.runtime.client.clone(), &key.namespace),
        Api::<Service>::namespaced(shared.runtime.client.clone(), &key.namespace),
    );
    let (pods, services) = futures::try_join!(pods.list(&cached), services.list(&cached))?;
    Ok(Scope::new(&shared.config.adopt_allow, &key.namespace, pods, services))
}

/// A connection to each endpoint, by its URL, or why there is none.
pub(crate) async fn connect(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    intent: &Intent,
    scope: &Scope<'_>,
    secrets: &mut SecretReader,
) -> Vec<(MemberName, Result<Client, String>)> {
    let mut all = Vec::new();
    for url in &intent.adopt {
        let client = to(shared, key, cluster, url, scope, secrets).await;
        all.push((MemberName(url.clone()), client));
    }
    all
}

/// What a member that is not ours said is taken only if all its peers may be joined.
pub(crate) fn may_be_joined(intent: &Intent, scope: &Scope<'_>, reply: &Reply) -> Result<(), String> {
    let strangers = reply.list.iter().filter(|line| owner(intent, line).is_none());
    match strangers
        .flat_map(|line| &line.peer_urls)
        .all(|url| scope.may_join(url))
    {
        true => Ok(()),
        false => Err(format!("a member that it lists is {NOT_ALLOWED}")),
    }
}

const NOT_ALLOWED: &str =
    "no pod or Service of this namespace, and the operator was not started with --adopt-allow for it";

/// Why a server that is not ours did not answer, without what it said itself.
pub(crate) fn why_no_reply(error: &crate::client::Error) -> NoReply {
    NoReply {
        words: in_own_words(error).to_owned(),
        ..crate::connections::why_no_reply(error)
    }
}

/// Why a server that is not ours is not heard, in our own words: what it says is not for everybody who may read a status.
pub(crate) fn in_own_words(error: &crate::client::Error) -> &'static str {
    use crate::client::Error;
    let says = |why: &str, words: &[&str]| words.iter().any(|word| why.to_ascii_lowercase().contains(word));
    match error {
        Error::TimedOut(_) => "it does not answer in time",
        Error::Unreachable(why) if says(why, &["connection refused"]) => "it refuses the connection",
        Error::Unreachable(why) if says(why, &["did not accept a connection"]) => "it cannot be connected to in time",
        Error::Handshake(_) => "TLS fails with it",
        Error::Unreachable(_) | Error::Broken(_) => "it cannot be reached, or does not answer as etcd does",
        Error::NoQuorum(_) => "it has no leader",
        Error::NotYet(_) => "it says: not yet",
        Error::NoSpace(_) => "its space quota is used up",
        Error::Permission(_) => "it asks for a user, and authentication is not supported here",
        Error::AuthNotEnabled
        | Error::MemberNotFound
        | Error::AlreadyThere(_)
        | Error::NotALearner
        | Error::Unsupported(_)
        | Error::Refused(_) => "it refuses, or does not answer as etcd does",
    }
}

async fn to(
    shared: &Shared,
    key: &Key,
    cluster: &EtcdCluster,
    url: &str,
    scope: &Scope<'_>,
    secrets: &mut SecretReader,
) -> Result<Client, String> {
    let (host, port, tls) = parse(url).ok_or_else(|| "write it as http://HOST:2379 or https://HOST:2379".to_owned())?;
    if !scope.may_resolve(host) {
        return Err(format!("it is {NOT_ALLOWED}"));
    }
    let tls = match tls_secrets(cluster).client {
        _ if !tls => None,
        Some(secret) => Some(secrets.client_certificate(shared, key, &secret, None).await?.0),
        None => return Err("it speaks TLS, and spec.TLS names no certificate to connect with".into()),
    };
    let address = tokio::time::timeout(Duration::from_secs(1), tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| "its name is not resolved in time".to_owned())?
        .map_err(|_| "its name is not known".to_owned())?
        .find(SocketAddr::is_ipv4)
        .ok_or_else(|| "its name has no address".to_owned())?;
    if !scope.may_connect(host, address.ip()) {
        return Err(format!("it is {NOT_ALLOWED}"));
    }
    Client::new(address, tls.as_ref().map(|tls| (tls, host)), TIMEOUTS).map_err(|error| error.to_string())
}

/// Host, port and whether with TLS.
pub(crate) fn parse(url: &str) -> Option<(&str, u16, bool)> {
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
