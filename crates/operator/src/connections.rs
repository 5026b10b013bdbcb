//! Connections to members, kept by the cluster's loop for as long as the pod and its certificates are the same.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use stateward_api::names;
use stateward_etcd::{Client, Timeouts};
use stateward_plan::etcd::{Intent, MemberName};

use crate::Shared;
use crate::caches::Key;
use crate::secrets::SecretReader;

/// For connecting, and for changes that etcd takes its time for.
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    request: Duration::from_secs(5),
};

/// The connections of one cluster.
#[derive(Default)]
pub(crate) struct Connections {
    open: HashMap<MemberName, Open>,
}

struct Open {
    /// What it was made for: pod, address and certificates.
    made_for: String,
    client: Client,
    /// It was silent when last asked: it gets less patience, so that it holds nobody up.
    silent: bool,
}

impl Connections {
    /// The connection to a member's pod, or why there can be none.
    pub(crate) async fn to(
        &mut self,
        shared: &Shared,
        key: &Key,
        intent: &Intent,
        member: &MemberName,
        pod: &core::Pod,
        secrets: &mut SecretReader,
    ) -> Result<Client, String> {
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        let ip: IpAddr = ip
            .and_then(|ip| ip.parse().ok())
            .ok_or_else(|| "its pod has no address".to_owned())?;
        if !shared.config.reach.has(ip) {
            return Err("the operator is cut off from it".to_owned());
        }
        let address = SocketAddr::new(ip, u16::try_from(names::CLIENT_PORT).unwrap_or(2379));
        let tls = if speaks_tls(pod) {
            let secret = client_secret(pod).ok_or_else(|| "its pod names no Secret to connect with".to_owned())?;
            Some(secrets.client_certificate(shared, key, &secret).await?)
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
        let client = Client::new(address, tls, TIMEOUTS).map_err(|error| error.to_string())?;
        let open = Open {
            made_for,
            client: client.clone(),
            silent: false,
        };
        self.open.insert(member.clone(), open);
        Ok(client)
    }

    /// How long to wait for a member's answer about itself.
    pub(crate) fn patience(&self, member: &MemberName) -> Duration {
        match self.open.get(member) {
            Some(open) if open.silent => Duration::from_millis(300),
            _ => Duration::from_secs(1),
        }
    }

    /// Remembers whether a member answered. The connection itself is kept: it mends itself, and a frozen member that
    /// comes back is heard on it.
    pub(crate) fn heard(&mut self, member: &MemberName, silent: bool) {
        if let Some(open) = self.open.get_mut(member) {
            open.silent = silent;
        }
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
