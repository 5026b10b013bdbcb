//! What the schema cannot say, or could not say when an object was stored: checked before a spec is acted on.
//!
//! A spec with a problem touches nothing; the words reach the status (rule 8 in docs/rules.md).

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::api::etcd_cluster::{EtcdCluster, Tls};
use crate::api::owned_flags;
use crate::api::{EtcdBackup, EtcdRestore, SIZES};
use stateward_core::quantity;
use stateward_core::store::{Store, StoreError, token_message};

/// Something in a spec that cannot be acted on: the field, what is wrong, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.{field}: {message}")]
pub struct Problem {
    /// The field, below `spec`.
    pub field: String,
    /// What is wrong and what to change.
    pub message: String,
}

fn problem(field: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem {
        field: field.into(),
        message: message.into(),
    }
}

impl EtcdCluster {
    /// Everything in the spec that cannot be acted on. Nothing is changed until it is corrected.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !SIZES.contains(&self.spec.size) {
            problems.push(problem(
                "size",
                format!(
                    "{} is not possible: choose a size from {} to {}. To stop all pods and keep the data, set hibernate: true",
                    self.spec.size,
                    SIZES.start(),
                    SIZES.end()
                ),
            ));
        }
        if let Err(error) = self.version() {
            problems.push(problem("version", error.to_string()));
        }
        let size = self.spec.storage.as_ref().and_then(|storage| storage.size.as_ref());
        if let Some(size) = size.filter(|size| quantity::bytes(size).is_none_or(|bytes| bytes < 1)) {
            problems.push(problem(
                "storage.size",
                format!("\"{}\" is not a size: write it as 8Gi or 500Mi", size.0),
            ));
        }
        problems.extend(self.label_problems());
        if !self.has_begun() {
            problems.extend(self.doubtful());
        }
        problems
    }

    /// What a new cluster is refused for. One that has begun with it is looked after all the same: its members run with it, or
    /// without it, and stay so.
    pub fn tolerated(&self) -> Vec<Problem> {
        match self.has_begun() {
            true => self.doubtful(),
            false => Vec::new(),
        }
    }

    fn has_begun(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.bootstrap.is_some())
    }

    fn doubtful(&self) -> Vec<Problem> {
        let mut problems = self.reserved_labels();
        problems.extend(self.reserved_variables());
        problems.extend(self.certificate_problems());
        problems.extend(self.storage_problem());
        problems
    }

    fn storage_problem(&self) -> Option<Problem> {
        // The schema compares two specs, not the spec with the cluster that runs.
        let started = self.status.as_ref()?.bootstrap.as_ref()?.ephemeral;
        let wanted = self.spec.storage.as_ref()?.ephemeral?;
        (started != wanted).then(|| {
            problem(
                "storage.ephemeral",
                format!(
                    "the cluster was started with ephemeral: {started}, which cannot change: \
                     set it back, or create another cluster"
                ),
            )
        })
    }

    /// The old operator refused these too (`spec: pod labels contains reserved label`).
    fn reserved_labels(&self) -> Vec<Problem> {
        let labels = self.spec.pod.iter().flat_map(|pod| pod.labels.keys());
        labels
            .filter(|key| key.as_str() == "app" || key.starts_with("etcd_"))
            .map(|key| {
                problem(
                    format!("pod.labels[{key}]"),
                    "pods and services are found by this label, which Stateward sets: remove it",
                )
            })
            .collect()
    }

    fn reserved_variables(&self) -> Vec<Problem> {
        let variables = self.spec.pod.iter().flat_map(|pod| &pod.etcd_env);
        variables
            .filter(|variable| owned_flags::is_owned_variable(&variable.name))
            .map(|variable| {
                let out = if variable.name == "ETCD_WAL_DIR" && self.has_begun() {
                    "members have their log there: back the cluster up, and restore it into one without this variable"
                } else {
                    "remove it"
                };
                problem(
                    format!("pod.etcdEnv[{}]", variable.name),
                    format!("addresses, names, directories, membership and certificates are set by Stateward: {out}"),
                )
            })
            .collect()
    }

    /// What pods are refused for is left to the API server, which is asked before any of them is stopped.
    fn label_problems(&self) -> Vec<Problem> {
        let empty = BTreeMap::new();
        let maps = [
            ("pod.labels", self.spec.pod.as_ref().map_or(&empty, |pod| &pod.labels)),
            (
                "service.labels",
                self.spec.service.as_ref().map_or(&empty, |service| &service.labels),
            ),
        ];
        let mut problems = Vec::new();
        for (field, labels) in maps {
            for (key, value) in labels {
                let wrong = if !is_label_key(key) {
                    format!(
                        "\"{key}\" is not a label key: use letters, digits, '-', '_', '.', perhaps after example.com/"
                    )
                } else if !is_label_value(value) {
                    format!("\"{value}\" is not a label value: use at most 63 letters, digits, '-', '_', '.'")
                } else {
                    continue;
                };
                problems.push(problem(format!("{field}[{key}]"), wrong));
            }
        }
        problems
    }

    fn certificate_problems(&self) -> Vec<Problem> {
        let (field, addresses) = match self.tls() {
            Tls::Auto(auto) => ("TLS.auto.ipAddresses", &auto.ip_addresses),
            Tls::CertManager(certificates) => ("TLS.certManager.ipAddresses", &certificates.ip_addresses),
            Tls::Off | Tls::Static(_) | Tls::Copied(_) => return Vec::new(),
        };
        let wrong = addresses.iter().filter(|address| address.parse::<IpAddr>().is_err());
        wrong
            .map(|address| {
                problem(
                    field,
                    format!("\"{address}\" is not an IP address: write names in dnsNames"),
                )
            })
            .collect()
    }
}

impl EtcdBackup {
    /// Everything in the spec that cannot be acted on.
    pub fn problems(&self) -> Vec<Problem> {
        let store = self.spec.plan.store();
        let mut problems: Vec<Problem> = store.err().map(store_problem).into_iter().collect();
        problems.extend(store.ok().and_then(|store| token_problem(&store)));
        if self.spec.etcd_endpoints.is_empty() == self.spec.cluster_ref.is_none() {
            problems.push(problem(
                "clusterRef",
                "name what to back up: set either clusterRef.name or etcdEndpoints",
            ));
        }
        problems
    }
}

impl EtcdRestore {
    /// Everything in the spec that cannot be acted on.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        match (&self.spec.backup_ref, self.spec.store()) {
            (None, Err(error)) => problems.push(store_problem(error)),
            (Some(_), Ok(_) | Err(StoreError::Several | StoreError::Mismatch)) => {
                problems.push(problem(
                    "backupRef",
                    "a store block names a backup too: keep one of them",
                ));
            }
            (None, Ok(store)) => problems.extend(token_problem(&store)),
            (Some(_), Err(StoreError::Missing)) => {}
        }
        let (cluster, name) = (self.cluster_name(), self.metadata.name.as_deref().unwrap_or_default());
        let fits = |rest: &str| rest.is_empty() || rest.starts_with('-');
        if !name.strip_prefix(cluster).is_some_and(fits) {
            problems.push(problem(
                "etcdCluster.name",
                "an EtcdRestore is named like the cluster that it puts back, or like it with a dash and more: create one with such a name",
            ));
        }
        problems
    }
}

fn token_problem(store: &Store<'_>) -> Option<Problem> {
    let secret = store.needs_secret()?;
    let block = match store {
        Store::Abs(_) => "abs",
        _ => "gcs",
    };
    Some(problem(format!("{block}.endpoint"), token_message(secret)))
}

fn store_problem(error: StoreError) -> Problem {
    problem("storageType", error.to_string())
}

/// Kubernetes' rule for a part of a label: letters and digits at both ends, at most 63.
fn is_label_name(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

fn is_label_key(text: &str) -> bool {
    let Some((prefix, name)) = text.split_once('/') else {
        return is_label_name(text);
    };
    let part = |part: &str| {
        let inner = part
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        !part.is_empty() && inner && !part.starts_with('-') && !part.ends_with('-')
    };
    prefix.len() <= 253 && prefix.split('.').all(part) && is_label_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(spec: serde_json::Value, status: serde_json::Value) -> EtcdCluster {
        let object = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
            "metadata": {"name": "c", "namespace": "ns"}, "spec": spec, "status": status});
        serde_json::from_value(object).expect("a cluster")
    }

    fn problems(spec: serde_json::Value, status: serde_json::Value) -> Vec<String> {
        let found = cluster(spec, status).problems();
        found.iter().map(ToString::to_string).collect()
    }

    fn tolerated(spec: serde_json::Value, status: serde_json::Value) -> Vec<String> {
        let found = cluster(spec, status).tolerated();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_spec_has_no_problem() {
        let spec = json!({"size": 3, "version": "v3.6.16", "storage": {"size": "8Gi"},
            "pod": {"labels": {"example.com/team": "a-b_c.d", "empty": ""}},
            "TLS": {"auto": {"ipAddresses": ["::1"]}}});
        assert_eq!(problems(spec, json!(null)), Vec::<String>::new());
    }

    #[test]
    fn each_problem_names_the_field_and_the_fix() {
        let spec = json!({"size": 0, "version": "3.8.1", "storage": {"size": "huge"},
            "pod": {"labels": {"-a": "b", "b": "c d", "app": "mine"}, "etcdEnv": [{"name": "ETCD_WAL_DIR", "value": "/w"}]},
            "TLS": {"auto": {"ipAddresses": ["here"]}}});
        let problems = problems(spec, json!(null));
        for (field, fix) in [
            ("spec.size", "from 1 to 7"),
            ("spec.version", "from 3.2 to 3.7"),
            ("spec.storage.size", "write it as 8Gi"),
            ("spec.pod.labels", "use letters"),
            ("spec.pod.labels[b]", "at most 63"),
            ("spec.pod.labels[app]", "remove it"),
            ("spec.pod.etcdEnv[ETCD_WAL_DIR]", "remove it"),
            ("spec.TLS.auto.ipAddresses", "dnsNames"),
        ] {
            assert!(
                problems
                    .iter()
                    .any(|text| text.starts_with(field) && text.contains(fix)),
                "{field}: {problems:?}"
            );
        }
    }

    #[test]
    fn backups_and_restores_say_what_is_missing() {
        let object = |kind: &str, spec: serde_json::Value| {
            json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": kind,
                "metadata": {"name": "c"}, "spec": spec})
        };
        let backup = |spec| {
            serde_json::from_value::<EtcdBackup>(object("EtcdBackup", spec))
                .expect("a backup")
                .problems()
        };
        let restore = |spec| {
            serde_json::from_value::<EtcdRestore>(object("EtcdRestore", spec))
                .expect("a restore")
                .problems()
        };
        assert_eq!(
            backup(json!({"clusterRef": {"name": "c"}, "s3": {"path": "b/k"}})),
            vec![]
        );
        assert_eq!(backup(json!({})).len(), 2);
        assert_eq!(
            backup(json!({"etcdEndpoints": ["e"], "s3": {"path": "b/k"}, "gcs": {"path": "b/k"}})).len(),
            1
        );
        // the token of a pod's identity goes to nobody but the provider
        for (block, secret) in [("gcs", "gcpSecret"), ("abs", "absSecret")] {
            let of = |store: serde_json::Value| {
                (
                    json!({"clusterRef": {"name": "c"}, block: store}),
                    json!({block: store}),
                )
            };
            let (bad, worse) = of(json!({"path": "b/k", "endpoint": "https://store.example"}));
            for found in [backup(bad), restore(worse)] {
                assert_eq!(found.len(), 1);
                assert!(
                    found[0].field == format!("{block}.endpoint")
                        && found[0].message.contains(&format!("set {secret}"))
                );
            }
            for good in [
                json!({"path": "b/k"}),
                json!({"path": "b/k", "endpoint": "https://s.example", secret: "s"}),
            ] {
                let (one, other) = of(good);
                assert_eq!((backup(one), restore(other)), (vec![], vec![]));
            }
        }
        assert_eq!(restore(json!({"backupRef": {"name": "nightly"}})), vec![]);
        assert_eq!(restore(json!({"s3": {"path": "b/k"}})), vec![]);
        assert_eq!(restore(json!({"etcdCluster": {"name": "other"}})).len(), 2);
        assert_eq!(
            restore(json!({"backupRef": {"name": "nightly"}, "s3": {"path": "b/k"}})).len(),
            1
        );
    }

    #[test]
    fn a_durable_cluster_does_not_become_ephemeral_by_adding_the_field_later() {
        let status = json!({"bootstrap": {"token": "t", "seed": "c-x", "ephemeral": false}});
        let spec = json!({"size": 1, "storage": {"ephemeral": true}});
        assert_eq!(problems(spec.clone(), status.clone()), Vec::<String>::new());
        let found = tolerated(spec, status.clone());
        assert!(found[0].contains("ephemeral: false, which cannot change"), "{found:?}");
        // an old client that sends the object back drops the field: the record holds
        assert_eq!(tolerated(json!({"size": 1}), status), Vec::<String>::new());
    }

    #[test]
    fn what_a_new_cluster_is_refused_for_one_that_runs_is_told() {
        let running = json!({"bootstrap": {"token": "t", "seed": "c-x"}});
        for (pod, field) in [
            (json!({"labels": {"app": "mine"}}), "spec.pod.labels[app]"),
            (
                json!({"labels": {"etcd_cluster": "mine"}}),
                "spec.pod.labels[etcd_cluster]",
            ),
            (
                json!({"etcdEnv": [{"name": "ETCD_STRICT_RECONFIG_CHECK", "value": "false"}]}),
                "spec.pod.etcdEnv[ETCD_STRICT_RECONFIG_CHECK]",
            ),
            (
                json!({"etcdEnv": [{"name": "ETCD_CONFIG_FILE", "value": "/f"}]}),
                "spec.pod.etcdEnv[ETCD_CONFIG_FILE]",
            ),
            (
                json!({"etcdEnv": [{"name": "ETCD_INITIAL_ADVERTISE_PEER_URLS", "value": "x"}]}),
                "spec.pod.etcdEnv[ETCD_INITIAL",
            ),
        ] {
            let spec = json!({"size": 1, "pod": pod});
            let refused = problems(spec.clone(), json!(null));
            assert!(
                refused.len() == 1 && refused[0].starts_with(field),
                "{field}: {refused:?}"
            );
            assert_eq!(problems(spec.clone(), running.clone()), Vec::<String>::new());
            assert_eq!(tolerated(spec.clone(), running.clone()), refused);
            assert_eq!(tolerated(spec, json!(null)), Vec::<String>::new());
        }
        // What only Stateward's own fields are better for stays as the old operator took it.
        let old = json!({"size": 1, "pod": {"labels": {"application": "a"},
            "etcdEnv": [{"name": "ETCD_AUTO_COMPACTION_RETENTION", "value": "1"}, {"name": "ETCD_LOG_LEVEL", "value": "info"}]}});
        assert_eq!(problems(old, json!(null)), Vec::<String>::new());
    }
}
