//! What of a spec cannot be followed, in words that say what to change. Admission refuses most of it; this also holds for objects
//! that were written before the schema knew a rule.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde_json::Value;
use stateward_core::quantity;

use super::{Acks, MySQLCluster, MySQLVersion, SIZES, config};
use crate::names::CLUSTER_NAME_LIMIT;

/// Something in a spec that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, below `spec`.
    pub field: String,
    /// What is wrong, and what to change.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.{}: {}", self.field, self.message)
    }
}

fn problem(field: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem {
        field: field.into(),
        message: message.into(),
    }
}

impl MySQLCluster {
    /// Everything in the spec that cannot be followed.
    pub fn problems(&self) -> Vec<Problem> {
        let spec = &self.spec;
        let mut problems = Vec::new();
        if self.name().len() > CLUSTER_NAME_LIMIT {
            problems.push(Problem {
                field: "metadata.name".into(),
                message: format!("it may have {CLUSTER_NAME_LIMIT} characters at most: create one with a shorter name"),
            });
        }
        if !SIZES.contains(&spec.size) {
            let (least, most) = (SIZES.start(), SIZES.end());
            problems.push(problem("size", format!("it must be from {least} to {most}")));
        }
        if let Some(version) = &spec.version
            && let Err(error) = MySQLVersion::supported(version)
        {
            problems.push(problem("version", error.to_string()));
        }
        if let Some(size) = spec.storage.as_ref().and_then(|storage| storage.size.as_ref())
            && quantity::unsigned_bytes(size).is_none_or(|bytes| bytes == 0)
        {
            let message = format!("\"{}\" is not a size: write it as 10Gi or 500Mi", size.0);
            problems.push(problem("storage.size", message));
        }
        match spec.durability.as_ref().and_then(|durability| durability.acks.as_ref()) {
            Some(Acks::Number(acks)) if *acks < 0 || *acks >= i64::from(spec.size) => {
                problems.push(problem(
                    "durability.acks",
                    format!(
                        "it must be from 0 to {}: a primary does not acknowledge its own writes",
                        spec.size - 1
                    ),
                ));
            }
            Some(Acks::Word(word)) if word != "Auto" => {
                problems.push(problem("durability.acks", "it must be \"Auto\" or a number below size"));
            }
            _ => {}
        }
        if let Some(prefer) = spec.primary.as_ref().and_then(|primary| primary.prefer)
            && !(0..i64::from(spec.size)).contains(&prefer)
        {
            problems.push(problem(
                "primary.prefer",
                "it must be the ordinal of a member: a number below size",
            ));
        }
        if let Some(blocks) = &spec.config {
            problems.extend(variables("all", &blocks.all, false));
            problems.extend(variables("primary", &blocks.primary, true));
            problems.extend(variables("replica", &blocks.replica, true));
        }
        let addresses = spec.tls.iter().filter_map(|tls| tls.auto.as_ref());
        for address in addresses.flat_map(|auto| &auto.ip_addresses) {
            if address.parse::<IpAddr>().is_err() {
                let message = format!("\"{address}\" is not an IP address: write names in dnsNames");
                problems.push(problem("TLS.auto.ipAddresses", message));
            }
        }
        problems
    }
}

fn variables(block: &str, variables: &BTreeMap<String, Value>, by_role: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for (name, value) in variables {
        let field = format!("config.{block}[{name}]");
        let normal = config::normal(name);
        let plain = !normal.is_empty()
            && normal
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
        if !plain {
            problems.push(problem(field, "this is no name of a system variable"));
        } else if config::is_owned(name) {
            problems.push(problem(field, "this variable is set by Stateward: remove it"));
        } else if let Some(other) = seen.insert(normal.clone(), name) {
            problems.push(problem(
                field,
                format!("\"{other}\" names the same variable: keep one of them"),
            ));
        } else if by_role && config::is_static(name) {
            problems.push(problem(
                field,
                "MySQL reads this variable only when it starts, and roles change without a restart: set it in config.all",
            ));
        } else {
            match config::text(value) {
                None => problems.push(problem(field, "the value must be a string, a number or a boolean")),
                Some(text) if text.contains(['\n', '\r', '\0']) => {
                    problems.push(problem(field, "the value must be one line"));
                }
                Some(_) => {}
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(spec: Value) -> Vec<String> {
        let object = json!({"apiVersion": "mysql.stateward.dev/v1alpha1", "kind": "MySQLCluster",
            "metadata": {"name": "orders", "namespace": "ns"}, "spec": spec});
        let cluster: MySQLCluster = serde_json::from_value(object).expect("a cluster");
        cluster.problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_spec_has_no_problem() {
        let spec = json!({"size": 3, "version": "9.7.4", "storage": {"size": "10Gi"}, "serverIDBase": 100,
            "config": {"all": {"max_connections": 500, "innodb-buffer-pool-size": "1G"},
                "primary": {"long_query_time": 0.5}, "replica": {"general_log": true}},
            "durability": {"acks": "Auto", "whenNoAcker": "Block"}, "clone": {"from": "Replica"},
            "failover": {"afterSeconds": 2, "errant": "Quarantine"}, "primary": {"prefer": 0},
            "update": {"partition": 0}, "TLS": {"auto": {}}});
        assert_eq!(problems(spec), Vec::<String>::new());
        assert_eq!(
            problems(json!({"size": 4, "durability": {"acks": 3}})),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_problem_names_the_field_and_the_fix() {
        for (spec, field, fix) in [
            (json!({"size": 0}), "spec.size", "from 1 to 9"),
            (json!({"size": 1, "version": "5.7.44"}), "spec.version", "8.4 and later"),
            (
                json!({"size": 1, "storage": {"size": "huge"}}),
                "spec.storage.size",
                "write it as 10Gi",
            ),
            (
                json!({"size": 3, "durability": {"acks": 3}}),
                "spec.durability.acks",
                "from 0 to 2",
            ),
            (
                json!({"size": 3, "durability": {"acks": "All"}}),
                "spec.durability.acks",
                "Auto",
            ),
            (
                json!({"size": 3, "primary": {"prefer": 3}}),
                "spec.primary.prefer",
                "below size",
            ),
            (
                json!({"size": 1, "config": {"all": {"server-id": 7}}}),
                "spec.config.all[server-id]",
                "remove it",
            ),
            (
                json!({"size": 1, "config": {"all": {"a_b": 7, "a-b": 8}}}),
                "spec.config.all[a_b]",
                "keep one",
            ),
            (
                json!({"size": 1, "config": {"replica": {"innodb_page_size": "16K"}}}),
                "spec.config.replica[innodb_page_size]",
                "set it in config.all",
            ),
            (
                json!({"size": 1, "config": {"all": {"x": [1]}}}),
                "spec.config.all[x]",
                "string, a number",
            ),
            (
                json!({"size": 1, "config": {"all": {"x y": 1}}}),
                "spec.config.all[x y]",
                "no name",
            ),
            (
                json!({"size": 1, "config": {"all": {"x": "1\nlog_bin=0"}}}),
                "spec.config.all[x]",
                "one line",
            ),
            (
                json!({"size": 1, "TLS": {"auto": {"ipAddresses": ["here"]}}}),
                "spec.TLS.auto.ipAddresses",
                "dnsNames",
            ),
        ] {
            let found = problems(spec);
            assert_eq!(found.len(), 1, "{field}: {found:?}");
            assert!(found[0].starts_with(field) && found[0].contains(fix), "{found:?}");
        }
    }
}
