//! `TLS.auto`: a CA and certificates, issued into Secrets with the old operator's key names and renewed after two thirds
//! of their life. etcd reads its certificates anew at every handshake, so a renewal restarts nothing.
//!
//! When they are due is written on the Secrets as an annotation, so that a quiet cluster's Secrets are not read.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::core::PartialObjectMetaExt;
use kube::{Api, Resource};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use stateward_api::etcd_cluster::{AutoTls, Tls};
use stateward_api::{EtcdCluster, names};
use stateward_plan::etcd::manifests::tls_secrets;

use crate::Shared;
use crate::caches::Key;

/// Annotation: from then on the certificate is to be renewed.
const RENEW_AFTER: &str = "stateward.dev/renew-after";
/// Annotation: what the certificate was asked to carry.
const CARRIES: &str = "stateward.dev/certificate-names";
/// Days for which a CA of our own is valid.
const CA_DAYS: i64 = 3650;
const DEFAULT_VALIDITY_DAYS: i64 = 90;

/// A certificate to have.
struct Wanted {
    secret: String,
    /// File names of certificate, key and CA.
    keys: [&'static str; 3],
    names: Vec<String>,
    server: bool,
}

/// Whether certificates are to be issued or renewed; `true`: some are not there at all, and nothing can start before.
pub(crate) fn due(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> Option<bool> {
    let Tls::Auto(auto) = cluster.tls() else {
        return None;
    };
    let now = Timestamp::now();
    let due = wanted(cluster, auto)
        .into_iter()
        .filter(|wanted| is_due(shared, key, wanted, now));
    due.map(|wanted| {
        shared
            .caches
            .secrets
            .get(&Key::new(key.namespace.clone(), wanted.secret))
            .is_none()
    })
    .reduce(|any, absent| any || absent)
}

/// Makes what is missing, and renews what is due.
pub(crate) async fn issue(shared: &Shared, key: &Key, cluster: &EtcdCluster) -> kube::Result<()> {
    let Tls::Auto(auto) = cluster.tls() else {
        return Ok(());
    };
    let now = Timestamp::now();
    let due: Vec<Wanted> = wanted(cluster, auto)
        .into_iter()
        .filter(|wanted| is_due(shared, key, wanted, now))
        .collect();
    let api: Api<Secret> = Api::namespaced(shared.client.clone(), &key.namespace);
    let (ca, ca_key) = authority(&api, cluster, auto, now).await?;
    for wanted in due {
        let certificate = sign(&wanted, &ca, &ca_key, auto, now).map_err(refused)?;
        let written = write(&api, issued_secret(cluster, &wanted, certificate, auto, now)).await?;
        shared.caches.secrets.put(written.metadata.into_response_partial());
        tracing::info!(cluster = %key, secret = wanted.secret, "certificate issued");
    }
    Ok(())
}

fn wanted(cluster: &EtcdCluster, auto: &AutoTls) -> Vec<Wanted> {
    let (name, namespace) = (cluster.name(), cluster.namespace());
    let secrets = tls_secrets(cluster);
    let with_domains = |host: String| {
        let mut names = vec![host.clone(), format!("{host}.cluster.local")];
        let domain = cluster.cluster_domain().trim_matches('.');
        if !domain.is_empty() && domain != "cluster.local" {
            names.push(format!("{host}.{domain}"));
        }
        names
    };
    let members = with_domains(format!("*.{name}.{namespace}.svc"));
    let mut server = members.clone();
    server.extend(with_domains(format!("{}.{namespace}.svc", names::client_service(name))));
    server.extend([
        names::client_service(name),
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
    ]);
    server.extend(auto.dns_names.iter().chain(&auto.ip_addresses).cloned());
    [
        (secrets.peer, ["peer.crt", "peer.key", "peer-ca.crt"], members, true),
        (
            secrets.server,
            ["server.crt", "server.key", "server-ca.crt"],
            server,
            true,
        ),
        (
            secrets.client,
            ["etcd-client.crt", "etcd-client.key", "etcd-client-ca.crt"],
            vec!["stateward".to_owned()],
            false,
        ),
    ]
    .into_iter()
    .filter_map(|(secret, keys, names, server)| {
        Some(Wanted {
            secret: secret?,
            keys,
            names,
            server,
        })
    })
    .collect()
}

fn is_due(shared: &Shared, key: &Key, wanted: &Wanted, now: Timestamp) -> bool {
    let Some(seen) = shared
        .caches
        .secrets
        .get(&Key::new(key.namespace.clone(), &wanted.secret))
    else {
        return true;
    };
    let annotations = seen.metadata.annotations.as_ref();
    let text = |name: &str| annotations.and_then(|all| all.get(name)).cloned().unwrap_or_default();
    let renew_after: Option<Timestamp> = text(RENEW_AFTER).parse().ok();
    renew_after.is_none_or(|time| now >= time) || text(CARRIES) != wanted.names.join(",")
}

/// The CA to issue from: the user's, or one of our own that is made once.
async fn authority(
    api: &Api<Secret>,
    cluster: &EtcdCluster,
    auto: &AutoTls,
    now: Timestamp,
) -> kube::Result<(String, String)> {
    let name = auto
        .ca_secret
        .clone()
        .unwrap_or_else(|| format!("{}-ca-tls", cluster.name()));
    if let Some(secret) = api.get_opt(&name).await? {
        let data = secret.data.unwrap_or_default();
        let text = |key: &str| {
            data.get(key)
                .map(|value| String::from_utf8_lossy(&value.0).into_owned())
        };
        return match text("tls.crt").zip(text("tls.key")) {
            Some(pair) => Ok(pair),
            None => Err(refused(format!("the Secret {name} lacks tls.crt or tls.key"))),
        };
    }
    if auto.ca_secret.is_some() {
        return Err(refused(format!(
            "the Secret {name} that TLS.auto.caSecret names is not there"
        )));
    }
    let make = || -> Result<(String, String), rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = common_name(&format!("{} CA", cluster.name()));
        live(&mut params, now, CA_DAYS);
        Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
    };
    let (certificate, key) = make().map_err(refused)?;
    let data = [
        ("tls.crt", certificate.clone()),
        ("tls.key", key.clone()),
        ("ca.crt", certificate.clone()),
    ];
    let mut secret = secret(cluster, &name, data, BTreeMap::new());
    secret.type_ = Some("kubernetes.io/tls".into());
    // Made once: whoever comes second takes the first's at the next look.
    api.create(&PostParams::default(), &secret).await?;
    Ok((certificate, key))
}

fn sign(
    wanted: &Wanted,
    ca: &str,
    ca_key: &str,
    auto: &AutoTls,
    now: Timestamp,
) -> Result<[(&'static str, String); 3], rcgen::Error> {
    let issuer = Issuer::from_ca_cert_pem(ca, KeyPair::from_pem(ca_key)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    for name in &wanted.names {
        params.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into()?),
        });
    }
    params.distinguished_name = common_name(wanted.names.first().map_or("etcd", String::as_str));
    // Members are each other's clients, and etcd's gateway is a client of its own server.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if wanted.server {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    live(&mut params, now, validity_days(auto));
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let [certificate_name, key_name, ca_name] = wanted.keys;
    Ok([
        (certificate_name, certificate),
        (key_name, key.serialize_pem()),
        (ca_name, ca.to_owned()),
    ])
}

fn issued_secret(
    cluster: &EtcdCluster,
    wanted: &Wanted,
    data: [(&'static str, String); 3],
    auto: &AutoTls,
    now: Timestamp,
) -> Secret {
    let life = validity_days(auto);
    let renew_after = now.checked_add((life * 24 * 2 / 3).hours()).unwrap_or(now);
    let annotations = BTreeMap::from([
        (RENEW_AFTER.to_owned(), renew_after.to_string()),
        (CARRIES.to_owned(), wanted.names.join(",")),
    ]);
    secret(cluster, &wanted.secret, data, annotations)
}

fn secret(
    cluster: &EtcdCluster,
    name: &str,
    data: [(&'static str, String); 3],
    annotations: BTreeMap<String, String>,
) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: cluster.metadata.namespace.clone(),
            labels: Some(names::cluster_labels(cluster.name())),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: cluster.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(
            data.into_iter()
                .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    }
}

async fn write(api: &Api<Secret>, mut secret: Secret) -> kube::Result<Secret> {
    let name = secret.metadata.name.clone().unwrap_or_default();
    match api.get_opt(&name).await? {
        None => api.create(&PostParams::default(), &secret).await,
        Some(there) => {
            secret.metadata.resource_version = there.metadata.resource_version;
            secret.type_ = there.type_;
            api.replace(&name, &PostParams::default(), &secret).await
        }
    }
}

fn validity_days(auto: &AutoTls) -> i64 {
    auto.validity_days.unwrap_or(DEFAULT_VALIDITY_DAYS).clamp(1, 3650)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    // at most 64 characters by X.509
    distinguished.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    distinguished
}

/// Valid from yesterday, since clocks differ, until midnight of the day that is so many days from now.
fn live(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let day = |days: i64| {
        let then = now.checked_add((days * 24).hours()).unwrap_or(now);
        let date = then.to_zoned(jiff::tz::TimeZone::UTC).date();
        let unsigned = |number: i8| u8::try_from(number).unwrap_or(1);
        rcgen::date_time_ymd(i32::from(date.year()), unsigned(date.month()), unsigned(date.day()))
    };
    params.not_before = day(-1);
    params.not_after = day(days);
}

fn refused(error: impl std::fmt::Display) -> kube::Error {
    kube::Error::Service(format!("certificates: {error}").into())
}
