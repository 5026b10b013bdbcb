//! What a MySQLCluster is refused for at admission, and the bounds of what the rules read.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrBool,
};
use serde_json::json;
use stateward_core::crd::{Bound, Rule, bound, rule};

use super::SIZES;
use super::config::{OWNED, OWNED_FAMILIES};
use crate::names::CLUSTER_NAME_LIMIT;

const ROLES: [&str; 3] = ["all", "primary", "replica"];

/// What `spec.config` may hold cannot be told by a schema of values, as they are strings, numbers or booleans. So the blocks take
/// anything, and name the variables that are refused: rules can only read properties that the schema names.
pub(super) fn open_config(crd: &mut CustomResourceDefinition) {
    for version in &mut crd.spec.versions {
        let schema = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut());
        let config = schema
            .and_then(|schema| schema.properties.as_mut()?.get_mut("spec"))
            .and_then(|spec| spec.properties.as_mut()?.get_mut("config"));
        let Some(blocks) = config.and_then(|config| config.properties.as_mut()) else {
            continue;
        };
        for block in blocks.values_mut() {
            block.additional_properties = None::<JSONSchemaPropsOrBool>;
            block.x_kubernetes_preserve_unknown_fields = Some(true);
            let refused = refused_names().into_iter().map(|name| {
                let schema = JSONSchemaProps {
                    description: Some("Set by Stateward: refused.".into()),
                    x_kubernetes_int_or_string: Some(true),
                    ..JSONSchemaProps::default()
                };
                (name, schema)
            });
            block.properties = Some(refused.collect());
        }
    }
}

/// Owned names that rules can look for, with '_' and with '-'.
fn refused_names() -> Vec<String> {
    let plain = OWNED.iter().filter(|name| !name.ends_with('*'));
    let names = plain.chain(OWNED_FAMILIES.iter());
    let mut names: Vec<String> = names
        .flat_map(|name| [(*name).to_owned(), name.replace('_', "-")])
        .collect();
    names.sort();
    names.dedup();
    names
}

/// What a MySQLCluster is refused for.
pub(super) fn cluster() -> Vec<Rule> {
    let (least, most) = (SIZES.start(), SIZES.end());
    let mut rules = vec![
        rule(
            "",
            format!("self.metadata.name.size() <= {CLUSTER_NAME_LIMIT}"),
            format!(
                "metadata.name may have {CLUSTER_NAME_LIMIT} characters at most, as pods and their labels are named after it: \
                 choose a shorter name"
            ),
        ),
        rule(
            "",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name becomes the name of services: use lower-case letters, digits and '-', beginning with a letter",
        ),
        rule(
            "spec.size",
            format!("self >= {least} && self <= {most}"),
            format!("size must be from {least} to {most}"),
        ),
        rule(
            "spec.version",
            r"self == '' || self.matches('^[0-9]+\\.[0-9]+\\.[0-9]+$')",
            "version must be written as 9.7.4",
        ),
        rule(
            "spec.repository",
            "self == '' || !self.matches('(:[^/]*|@.*)$')",
            "repository is written without a tag or digest: the tag is spec.version",
        ),
        rule(
            "spec",
            "(has(self.serverIDBase) ? self.serverIDBase : 100) == (has(oldSelf.serverIDBase) ? oldSelf.serverIDBase : 100)",
            "serverIDBase cannot change: every member is known to the others by its server ID",
        ),
        rule(
            "spec",
            "!has(self.primary) || !has(self.primary.prefer) || self.primary.prefer < self.size",
            "primary.prefer must be the ordinal of a member: a number below size",
        ),
        rule(
            "spec",
            "!has(self.durability) || !has(self.durability.acks) || type(self.durability.acks) != int || \
             self.durability.acks < self.size",
            "durability.acks must be below size: a primary does not acknowledge its own writes",
        ),
        rule(
            "spec.durability.acks",
            "type(self) == int ? self >= 0 : self == 'Auto'",
            "acks must be \"Auto\" or a number that is not negative",
        ),
        rule(
            "spec.TLS",
            "!(has(self.disabled) && self.disabled && has(self.requireClients) && self.requireClients)",
            "requireClients needs TLS: remove disabled, or requireClients",
        ),
        rule(
            "spec.TLS",
            "!(has(self.disabled) && self.disabled && has(self.auto))",
            "auto and disabled contradict each other: keep one of them",
        ),
    ];
    for (field, example) in [("spec.database.name", "app"), ("spec.database.user", "app")] {
        rules.push(rule(
            field,
            "self == '' || self.matches('^[A-Za-z_][A-Za-z0-9_]*$')",
            format!("it must have letters, digits and '_' and begin with a letter, for example {example}"),
        ));
    }
    rules.push(rule(
        "spec.database.user",
        "self != 'root' && !self.startsWith('stateward') && !self.startsWith('mysql')",
        "this account is MySQL's or Stateward's own: choose another name",
    ));
    rules.push(rule(
        "spec.database.name",
        "!(self in ['mysql', 'sys', 'stateward', 'information_schema', 'performance_schema'])",
        "this database is MySQL's or Stateward's own: choose another name",
    ));
    for role in ROLES {
        for name in refused_names() {
            rules.push(rule(
                format!("spec.config.{role}"),
                format!("!has(self.{})", escaped(&name)),
                format!("{name} is set by Stateward: remove it from config.{role}"),
            ));
        }
    }
    rules
}

/// A property's name as CEL reads it.
fn escaped(name: &str) -> String {
    let escaped = name.replace("__", "__underscores__").replace('-', "__dash__");
    match escaped.as_str() {
        "namespace" | "package" | "true" | "false" | "null" | "in" => format!("__{escaped}__"),
        _ => escaped,
    }
}

/// Bounds of what the rules read, and of numbers.
pub(super) fn cluster_bounds() -> Vec<Bound> {
    let mut bounds = vec![
        bound("spec.size", "minimum", *SIZES.start()),
        bound("spec.size", "maximum", *SIZES.end()),
        bound("spec.version", "maxLength", 64),
        bound("spec.repository", "maxLength", 255),
        bound("spec.serverIDBase", "minimum", 1),
        bound("spec.serverIDBase", "maximum", 4_294_967_000_i64),
        bound("spec.failover.afterSeconds", "minimum", 1),
        bound("spec.failover.afterSeconds", "maximum", 3600),
        bound("spec.primary.prefer", "minimum", 0),
        bound("spec.reads.maxLagSeconds", "minimum", 0),
        bound("spec.update.partition", "minimum", 0),
        bound("spec.database.name", "maxLength", 64),
        bound("spec.database.user", "maxLength", 32),
        bound("spec.auth.appSecret", "maxLength", 253),
        bound("spec.storage.size", "maxLength", 32),
        bound("spec.storage.storageClassName", "maxLength", 253),
        bound("spec.TLS.auto.caSecret", "maxLength", 253),
        bound("spec.TLS.auto.validityDays", "minimum", 0),
        bound("spec.TLS.auto.validityDays", "maximum", 3650),
        bound("spec.TLS.auto.dnsNames", "maxItems", 64),
        bound("spec.TLS.auto.dnsNames.[]", "maxLength", 253),
        bound("spec.TLS.auto.ipAddresses", "maxItems", 64),
        bound("spec.TLS.auto.ipAddresses.[]", "maxLength", 253),
        bound("spec.pod.labels", "maxProperties", 64),
        bound("spec.pod.annotations", "maxProperties", 64),
        bound("spec.pod.topologySpreadConstraints", "maxItems", 16),
        bound("spec.pod.priorityClassName", "maxLength", 253),
        bound("status.conditions", "x-kubernetes-list-type", "map"),
        bound("status.conditions", "x-kubernetes-list-map-keys", json!(["type"])),
        bound("status.conditions.[]", "required", json!(["type"])),
        bound("status.members", "x-kubernetes-list-type", "map"),
        bound("status.members", "x-kubernetes-list-map-keys", json!(["name"])),
        bound("status.members.[]", "required", json!(["name"])),
    ];
    for (field, default) in [
        ("spec.repository", json!(super::DEFAULT_REPOSITORY)),
        ("spec.serverIDBase", json!(100)),
        ("spec.storage.retain", json!("Delete")),
        ("spec.durability.acks", json!("Auto")),
        ("spec.durability.whenNoAcker", json!("Block")),
        ("spec.clone.from", json!("Replica")),
        ("spec.failover.afterSeconds", json!(2)),
        ("spec.failover.errant", json!("Quarantine")),
        ("spec.reads.maxLagSeconds", json!(10)),
        ("spec.update.partition", json!(0)),
    ] {
        bounds.push(bound(field, "default", default));
    }
    bounds
}
