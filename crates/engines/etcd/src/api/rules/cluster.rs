//! What EtcdCluster refuses.

use super::backups::{backup_plan, store_blocks};
use super::{CRON_MESSAGE, DURATION, Rule, cron, rule};
use crate::api::SIZES;
use crate::api::names::{CLUSTER_NAME_LIMIT, RESERVED_PREFIX};
use crate::api::owned_flags::{FLAGS, PREFIXES, variable};

/// What EtcdCluster refuses.
pub(crate) fn etcd_cluster() -> Vec<Rule> {
    let limit = CLUSTER_NAME_LIMIT;
    let (least, most) = (SIZES.start(), SIZES.end());
    let mut rules = vec![
        rule(
            "",
            format!("self.metadata.name.size() <= {limit}"),
            format!(
                "metadata.name may have {limit} characters at most, as members are called <name>-<10 characters>: \
                 choose a shorter name"
            ),
        ),
        rule(
            "",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name becomes the name of services: use lower-case letters, digits and '-', \
             beginning with a letter",
        ),
        rule(
            "spec.size",
            format!("self >= {least} && self <= {most}"),
            format!(
                "size must be from {least} to {most}; to stop all members and keep their data, set hibernate: true instead"
            ),
        ),
        rule(
            "spec.version",
            r"self == '' || self.matches('^v?(0|[1-9][0-9]*)\\.(0|[1-9][0-9]*)\\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$')",
            "version is not a version of etcd: write it as MAJOR.MINOR.PATCH, for example 3.6.16",
        ),
        rule(
            "spec.version",
            r"!self.matches('^v?[0-9]+\\.[0-9]+\\.[0-9]+') || self.matches('^v?3\\.[2-7]\\.')",
            "version is not supported: choose one from 3.2 to 3.7",
        ),
        rule(
            "spec.repository",
            "!self.matches('[:@][^/]*$')",
            "repository must not carry a tag or digest: remove it, and set version; the image is repository:v<version>",
        ),
        rule(
            "spec",
            "(has(self.pod) && has(self.pod.ClusterDomain) ? self.pod.ClusterDomain : '') == \
             (has(oldSelf.pod) && has(oldSelf.pod.ClusterDomain) ? oldSelf.pod.ClusterDomain : '')",
            "pod.ClusterDomain cannot change, as it is part of every member's address: set the former value, \
             or create another cluster",
        ),
        rule(
            "spec",
            "!has(self.storage) || !has(self.pod) || !has(self.pod.persistentVolumeClaimSpec) || \
             !(has(self.storage.size) || has(self.storage.storageClassName) && self.storage.storageClassName != '' || \
             has(self.storage.ephemeral) && self.storage.ephemeral)",
            "pod.persistentVolumeClaimSpec and storage both describe the claims: keep one of them",
        ),
        rule(
            "spec",
            "!(has(self.hibernate) && self.hibernate && has(self.storage) && has(self.storage.ephemeral) && \
             self.storage.ephemeral)",
            "hibernate would lose all data of a cluster with ephemeral storage: set hibernate: false",
        ),
    ];
    rules.extend(storage());
    rules.extend(tls());
    rules.extend(maintenance());
    rules.extend(etcd_options());
    rules.extend(store_blocks("spec.backup", "storageType"));
    rules.extend(backup_plan("spec.backup"));
    for map in [
        "spec.pod.labels",
        "spec.pod.annotations",
        "spec.service.labels",
        "spec.service.annotations",
        "spec.storage.annotations",
    ] {
        rules.push(rule(
            map,
            format!("self.all(key, !key.startsWith('{RESERVED_PREFIX}'))"),
            format!("keys that begin with {RESERVED_PREFIX} are reserved for Stateward: remove them"),
        ));
    }
    rules
}

/// A quantity above zero, or nothing. The field may hold a number or a string.
fn size_or_unset(field: &str) -> String {
    let text = format!("string(self.{field})");
    format!("!has(self.{field}) || {text} == '' || isQuantity({text}) && quantity({text}).isGreaterThan(quantity('0'))")
}

fn storage() -> Vec<Rule> {
    let claim = |side: &str| format!("{side}.persistentVolumeClaimSpec");
    let claims_size = |side: &str| {
        let claim = claim(side);
        format!(
            "has({claim}) && has({claim}.resources) && has({claim}.resources.requests) && \
             'storage' in {claim}.resources.requests"
        )
    };
    let size = |side: &str| format!("string({}.resources.requests['storage'])", claim(side));
    let class = |side: &str| {
        let claim = claim(side);
        format!("has({claim}) && has({claim}.storageClassName) ? {claim}.storageClassName : ''")
    };
    let (new, old) = ("self", "oldSelf");
    vec![
        rule(
            "spec.storage",
            size_or_unset("size"),
            "storage.size is not a size: write it as 8Gi or 500Mi",
        ),
        rule(
            "spec.storage",
            "!has(self.size) || !has(oldSelf.size) || has(self.ephemeral) && self.ephemeral || \
             !isQuantity(string(self.size)) || !isQuantity(string(oldSelf.size)) || \
             quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "storage.size cannot shrink, as volumes only grow: set the former size or a larger one",
        ),
        rule(
            "spec.storage",
            "!has(self.storageClassName) || self.storageClassName == '' || !has(oldSelf.storageClassName) || \
             oldSelf.storageClassName == '' || self.storageClassName == oldSelf.storageClassName",
            "storage.storageClassName cannot change, as claims keep their class: set the former one, \
             or create another cluster",
        ),
        rule(
            "spec.storage",
            "!has(self.ephemeral) || !has(oldSelf.ephemeral) || self.ephemeral == oldSelf.ephemeral",
            "storage.ephemeral cannot change: set the former value, or create another cluster",
        ),
        rule(
            "spec.storage",
            "!has(self.ephemeral) || !self.ephemeral || !has(self.storageClassName) || self.storageClassName == ''",
            "ephemeral storage has no class: remove storage.storageClassName, or set ephemeral: false",
        ),
        rule(
            "spec.storage",
            "!has(self.medium) || self.medium == '' || has(self.ephemeral) && self.ephemeral",
            "storage.medium is for ephemeral storage only: set ephemeral: true, or remove medium",
        ),
        rule(
            "spec.pod",
            format!("!({}) || isQuantity({})", claims_size(new), size(new)),
            "persistentVolumeClaimSpec.resources.requests.storage is not a size: write it as 8Gi or 500Mi",
        ),
        rule(
            "spec.pod",
            format!(
                "!({0}) || !({2}) || !isQuantity({1}) || !isQuantity({3}) || \
                 quantity({1}).compareTo(quantity({3})) >= 0",
                claims_size(new),
                size(new),
                claims_size(old),
                size(old),
            ),
            "persistentVolumeClaimSpec.resources.requests.storage cannot shrink, as volumes only grow: \
             set the former size or a larger one",
        ),
        rule(
            "spec.pod",
            format!(
                "[{0}, {1}].exists(class, class == '') || ({0}) == ({1})",
                class(new),
                class(old)
            ),
            "persistentVolumeClaimSpec.storageClassName cannot change, as claims keep their class: set the former one, \
             or create another cluster",
        ),
    ]
}

fn tls() -> Vec<Rule> {
    let mut rules = vec![
        rule(
            "spec.TLS",
            "[has(self.static) && (has(self.static.member) || has(self.static.operatorSecret)), has(self.auto), \
             has(self.certManager)].filter(set, set).size() <= 1",
            "more than one source of certificates is given: keep one of static, auto, certManager",
        ),
        rule(
            "spec.TLS.static",
            "!(has(self.member) && has(self.member.serverSecret) && self.member.serverSecret != '') || \
             has(self.operatorSecret) && self.operatorSecret != ''",
            "member.serverSecret needs operatorSecret, without which Stateward cannot connect: set operatorSecret",
        ),
        rule(
            "spec.TLS.static",
            "!(has(self.operatorSecret) && self.operatorSecret != '') || \
             has(self.member) && has(self.member.serverSecret) && self.member.serverSecret != ''",
            "operatorSecret is of no use without member.serverSecret: set member.serverSecret, \
             or remove operatorSecret",
        ),
        rule(
            "spec.TLS.certManager",
            "has(self.issuerRef) && has(self.issuerRef.name) && self.issuerRef.name != ''",
            "certManager needs an issuer: set issuerRef.name",
        ),
    ];
    for field in ["duration", "renewBefore"] {
        rules.push(rule(
            format!("spec.TLS.certManager.{field}"),
            format!("self == '' || self.matches('{DURATION}')"),
            format!("{field} is not a duration: write it as 2160h"),
        ));
    }
    rules
}

fn maintenance() -> Vec<Rule> {
    let quantity_message = |field: &str| format!("{field} is not a size: write it as 8Gi or 500Mi");
    vec![
        rule(
            "spec.maintenance.defragmentation.schedule",
            cron(),
            format!("schedule {CRON_MESSAGE}"),
        ),
        rule(
            "spec.maintenance.defragmentation",
            size_or_unset("minSize"),
            quantity_message("minSize"),
        ),
        rule("spec.maintenance", size_or_unset("quota"), quantity_message("quota")),
        rule(
            "spec.maintenance.autoCompaction",
            format!(
                "has(self.retention) && (has(self.mode) && self.mode == 'Revision' ? \
                 self.retention.matches('^[0-9]+$') : self.retention.matches('{DURATION}'))"
            ),
            "retention must be a time as 1h for mode Periodic, or a number of revisions as 10000 for mode Revision",
        ),
        rule(
            "spec.service",
            "!has(self.nodePort) || self.nodePort == 0 || has(self.type) && self.type in ['NodePort', 'LoadBalancer']",
            "nodePort needs type NodePort or LoadBalancer: set type, or remove nodePort",
        ),
        rule(
            "spec.metrics.port",
            "!(self in [2379, 2380])",
            "ports 2379 and 2380 are those of clients and peers: choose another for metrics, or remove port",
        ),
    ]
}

fn etcd_options() -> Vec<Rule> {
    // The text is one of these words, or begins with one of those.
    let owned = |text: &str, name: fn(&str) -> String| {
        let words: Vec<_> = FLAGS.iter().map(|flag| format!("'{}'", name(flag))).collect();
        let prefixes = PREFIXES
            .iter()
            .map(|prefix| format!("{text}.startsWith('{}')", name(prefix)));
        let prefixes: Vec<_> = prefixes.collect();
        format!("({text} in [{}] || {})", words.join(", "), prefixes.join(" || "))
    };
    vec![
        rule(
            "spec.etcdOptions",
            "self.all(key, !key.startsWith('-'))",
            "write flags without their dashes, for example heartbeat-interval: \"250\"",
        ),
        rule(
            "spec.etcdOptions",
            format!("self.all(key, !{})", owned("key", str::to_owned)),
            "addresses, names, data directory, membership and certificates are set by Stateward: remove these flags",
        ),
        // What has not changed is not judged again by any Kubernetes that is supported (ratcheting, 1.33): an object that has
        // such a variable stays editable, and the status tells of it.
        rule(
            "spec.pod.etcdEnv",
            format!("self.all(one, !{})", owned("one.name", variable)),
            "addresses, names, directories, membership and certificates are set by Stateward: remove these variables",
        ),
        rule(
            "spec.etcdOptions",
            "self.all(key, key != 'quota-backend-bytes')",
            "set maintenance.quota instead of quota-backend-bytes",
        ),
        rule(
            "spec.etcdOptions",
            "self.all(key, !key.startsWith('auto-compaction-'))",
            "set maintenance.autoCompaction instead of auto-compaction-mode and auto-compaction-retention",
        ),
        rule(
            "spec.etcdOptions",
            "self.all(key, key != 'metrics')",
            "set metrics.mode instead of metrics",
        ),
    ]
}
