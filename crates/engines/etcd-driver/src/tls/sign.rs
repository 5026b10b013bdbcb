//! `TLS.auto`: an authority of the cluster's own, and certificates signed by it, or by the user's. They are renewed after
//! two thirds of their life. etcd reads its certificates anew at every handshake, so a renewal restarts nothing.
//!
//! When they are due is written on the Secrets as an annotation.

use jiff::{Timestamp, ToSpan};
use stateward_etcd::api::etcd_cluster::AutoTls;
use stateward_etcd::api::{EtcdCluster, names};
use stateward_runtime::pki::{self, AUTHORITY_DAYS, DEFAULT_VALIDITY_DAYS, RENEW_AFTER, Signed, Wanted};

use super::{Annotations, ROTATE, Role, own_ca};
use crate::Shared;
use stateward_runtime::Key;
use stateward_runtime::secrets::look;

/// The names that a certificate of a role carries. `further` are the user's own.
pub(super) fn names_of(cluster: &EtcdCluster, role: Role, further: impl Iterator<Item = String>) -> Vec<String> {
    let (name, namespace) = (cluster.name(), cluster.namespace());
    let with_domains = |host: String| {
        let mut names = vec![host.clone(), format!("{host}.cluster.local")];
        let domain = cluster.cluster_domain().trim_matches('.');
        if !domain.is_empty() && domain != "cluster.local" {
            names.push(format!("{host}.{domain}"));
        }
        names
    };
    let members = with_domains(format!("*.{name}.{namespace}.svc"));
    match role {
        Role::Peer => members,
        Role::Server => {
            let mut server = members;
            server.extend(with_domains(format!("{}.{namespace}.svc", names::client_service(name))));
            server.extend([names::client_service(name), "localhost".into(), "127.0.0.1".into()]);
            server.extend(further);
            server
        }
        Role::Client => vec!["stateward".to_owned()],
    }
}

pub(super) fn wanted(cluster: &EtcdCluster, auto: &AutoTls, role: Role) -> Wanted {
    let further = auto.dns_names.iter().chain(&auto.ip_addresses).cloned();
    Wanted {
        names: names_of(cluster, role, further),
        server: role != Role::Client,
        days: auto.validity_days.unwrap_or(DEFAULT_VALIDITY_DAYS).clamp(1, 3650),
    }
}

/// Whether a CA of our own is to be replaced: it nears its end, a person asked for it, or it is gone. That of members may be missing:
/// see `Look::shared_with_clients`.
pub(super) async fn ca_is_due(shared: &Shared, key: &Key, cluster: &EtcdCluster, now: Timestamp) -> kube::Result<bool> {
    for role in [Role::Peer, Role::Server] {
        let Some(name) = own_ca(cluster, role) else {
            continue;
        };
        let seen = look(&shared.runtime, &Key::new(key.namespace.clone(), name)).await?;
        let due = match seen {
            Some(seen) => {
                let made = seen.metadata.creation_timestamp.as_ref().map(|time| time.0);
                must_renew_ca(cluster, seen.metadata.annotations.as_ref(), made, now)
            }
            None => role != Role::Peer,
        };
        if due {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn must_renew_ca(
    cluster: &EtcdCluster,
    annotations: Option<&Annotations>,
    made: Option<Timestamp>,
    now: Timestamp,
) -> bool {
    let noted = |name: &str| annotations.and_then(|all| all.get(name));
    let asked = rotation_asked(cluster);
    let renew_after = match noted(RENEW_AFTER) {
        Some(time) => time.parse().ok(),
        // Authorities of earlier versions do not say it.
        None => made.and_then(|made| made.checked_add((AUTHORITY_DAYS * 16).hours()).ok()),
    };
    asked.is_some_and(|asked| noted(ROTATE) != Some(asked)) || renew_after.is_none_or(|time| now >= time)
}

fn rotation_asked(cluster: &EtcdCluster) -> Option<&String> {
    cluster.metadata.annotations.as_ref()?.get(ROTATE)
}

/// A new authority for a role.
pub(super) fn make_ca(cluster: &EtcdCluster, role: Role, now: Timestamp) -> Result<Signed, rcgen::Error> {
    let what = if role == Role::Peer { "peer CA" } else { "CA" };
    let mut made = pki::make_authority(&format!("{} {what} {}", cluster.name(), now.as_second()), now)?;
    let asked = rotation_asked(cluster).map(|asked| (ROTATE.to_owned(), asked.clone()));
    made.annotations.extend(asked);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use stateward_etcd::api::etcd_cluster::Tls;

    use stateward_runtime::pki::{days_left, sign, unfit};

    use super::*;

    fn cluster(annotations: serde_json::Value) -> EtcdCluster {
        let object = serde_json::json!({
            "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
            "metadata": {"name": "c", "namespace": "n", "annotations": annotations},
            "spec": {"size": 3, "TLS": {"auto": {"validityDays": 3650}}},
        });
        serde_json::from_value(object).expect("an EtcdCluster")
    }

    #[test]
    fn a_ca_is_replaced_when_asked_and_well_before_its_end_and_not_otherwise() {
        let quiet = cluster(serde_json::json!({}));
        let asking = cluster(serde_json::json!({ROTATE: "today"}));
        let now = Timestamp::UNIX_EPOCH;
        let signed = make_ca(&quiet, Role::Server, now).expect("an authority");
        let at = |days: i64| now.checked_add((days * 24).hours()).expect("a time");
        let due = |cluster, signed: &Signed, days| must_renew_ca(cluster, Some(&signed.annotations), None, at(days));
        assert!(!due(&quiet, &signed, 0) && !due(&quiet, &signed, 2400));
        assert!(due(&quiet, &signed, 2500), "a third of its life is left");
        assert!(due(&asking, &signed, 0));
        let followed = make_ca(&asking, Role::Server, now).expect("an authority");
        assert!(!due(&asking, &followed, 0) && !due(&quiet, &followed, 0));
        // One of an earlier version says nothing of itself.
        assert!(!must_renew_ca(&quiet, None, Some(now), at(2000)));
        assert!(must_renew_ca(&quiet, None, Some(now), at(2500)));
    }

    #[test]
    fn a_ca_is_unfit_with_the_key_of_another_or_after_its_end() {
        let cluster = cluster(serde_json::json!({}));
        let now = Timestamp::UNIX_EPOCH;
        let (one, other) = (
            make_ca(&cluster, Role::Server, now),
            make_ca(&cluster, Role::Server, now),
        );
        let (one, other) = (one.expect("an authority"), other.expect("an authority"));
        let why = |ca: &str, key: &str, now| unfit(ca, key, now).unwrap_or_default();
        assert_eq!(why(&one.certificate, &one.key, now), "");
        assert!(why(&one.certificate, &other.key, now).contains("not the key"));
        assert!(why("garbage", &one.key, now).contains("no certificate"));
        assert!(why(&one.certificate, "garbage", now).contains("cannot be used"));
        let later = now.checked_add((AUTHORITY_DAYS * 24).hours()).expect("a time");
        assert!(why(&one.certificate, &one.key, later).contains("ended"));
        let Tls::Auto(auto) = cluster.tls() else { panic!() };
        let leaf = sign(&wanted(&cluster, auto, Role::Server), &one.certificate, &one.key, now).expect("a certificate");
        assert!(why(&leaf.certificate, &leaf.key, now).contains("not one of a CA"));
    }

    #[test]
    fn a_certificate_does_not_outlive_its_ca() {
        let cluster = cluster(serde_json::json!({}));
        let Tls::Auto(auto) = cluster.tls() else { panic!() };
        let now = Timestamp::UNIX_EPOCH;
        let authority = make_ca(&cluster, Role::Server, now).expect("an authority");
        let later = now.checked_add((3000_i64 * 24).hours()).expect("a time");
        let wanted = wanted(&cluster, auto, Role::Server);
        let signed = sign(&wanted, &authority.certificate, &authority.key, later).expect("a certificate");
        assert!(days_left(&signed.certificate, now) <= days_left(&authority.certificate, now));
        assert!(!wanted.is_due(Some(&signed.annotations), later));
    }
}
