//! Rules and bounds in the schema: what is refused at admission, with a message that says what to change.
//!
//! Rules are CEL. The API server estimates what a rule may cost from the bounds of what it reads, so every string and list in
//! a rule has one. Empty means unset: rules treat an empty string like a missing field. Rules of change (`oldSelf`) only
//! compare what both sides have set, since compiled clients of the old API drop fields that they do not know when they
//! send an object back; what must not change then is held by the planner ([`crate::validate`]).

use serde_json::{Value, json};

use crate::etcd_cluster::Recovery;
use crate::names::{CLUSTER_NAME_LIMIT, METRICS_PORT, RESERVED_PREFIX};

/// A CEL rule at a field.
pub(crate) struct Rule {
    pub(crate) at: String,
    pub(crate) rule: String,
    pub(crate) message: String,
}

/// A keyword of the schema at a field.
pub(crate) struct Bound {
    pub(crate) at: String,
    pub(crate) keyword: &'static str,
    pub(crate) value: Value,
}

fn rule(at: impl Into<String>, rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule {
        at: at.into(),
        rule: rule.into(),
        message: message.into(),
    }
}

fn bound(at: impl Into<String>, keyword: &'static str, value: impl Into<Value>) -> Bound {
    Bound {
        at: at.into(),
        keyword,
        value: value.into(),
    }
}

/// Flags that Stateward sets itself. Those that begin with one of `OWNED_PREFIXES` are too.
const OWNED_FLAGS: &[&str] = &[
    "advertise-client-urls",
    "auto-tls",
    "cert-file",
    "client-cert-auth",
    "config-file",
    "data-dir",
    "enable-v2",
    "force-new-cluster",
    "gateway",
    "key-file",
    "max-learners",
    "name",
    "proxy",
    "strict-reconfig-check",
    "trusted-ca-file",
    "version",
    "wal-dir",
];
const OWNED_PREFIXES: &[&str] = &["client-crl", "discovery", "initial-", "listen-", "peer-", "proxy-"];

const CRON: &str = r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\\S+( +\\S+){4})$";
const CRON_MESSAGE: &str =
    "is not a cron expression: write five fields (minute hour day month weekday), for example \"0 3 * * *\"";
const DURATION: &str = "^([0-9]+(h|m|s))+$";

/// What EtcdCluster refuses.
pub(crate) fn etcd_cluster() -> Vec<Rule> {
    let limit = CLUSTER_NAME_LIMIT;
    let mut rules = vec![
        rule(
            "",
            format!("self.metadata.name.size() <= {limit}"),
            format!(
                "metadata.name may have {limit} characters at most, as members are called <name>-<10 characters>: choose a shorter name"
            ),
        ),
        rule(
            "",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name becomes the name of services: use lower-case letters, digits and '-', beginning with a letter",
        ),
        rule(
            "spec.size",
            "self >= 1 && self <= 7",
            "size must be from 1 to 7; to stop all members and keep their data, set hibernate: true instead",
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
            "pod.ClusterDomain cannot change, as it is part of every member's address: set the former value, or create another cluster",
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
            "!(has(self.hibernate) && self.hibernate && has(self.storage) && has(self.storage.ephemeral) && self.storage.ephemeral)",
            "hibernate would lose all data of a cluster with ephemeral storage: set hibernate: false",
        ),
    ];
    rules.extend(storage());
    rules.extend(tls());
    rules.extend(care());
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
    let claimed = "self.persistentVolumeClaimSpec.resources.requests";
    let claimed_before = "oldSelf.persistentVolumeClaimSpec.resources.requests";
    let has_claimed = |side: &str| {
        format!(
            "has({side}.persistentVolumeClaimSpec) && has({side}.persistentVolumeClaimSpec.resources) && \
             has({side}.persistentVolumeClaimSpec.resources.requests) && \
             'storage' in {side}.persistentVolumeClaimSpec.resources.requests"
        )
    };
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
            "storage.storageClassName cannot change, as claims keep their class: set the former one, or create another cluster",
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
            format!(
                "!({}) || !({}) || quantity(string({claimed}['storage'])).compareTo(quantity(string({claimed_before}['storage']))) >= 0",
                has_claimed("self"),
                has_claimed("oldSelf"),
            ),
            "persistentVolumeClaimSpec.resources.requests.storage cannot shrink, as volumes only grow: set the former size or a larger one",
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
            "operatorSecret is of no use without member.serverSecret: set member.serverSecret, or remove operatorSecret",
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

fn care() -> Vec<Rule> {
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
                "has(self.retention) && (has(self.mode) && self.mode == 'Revision' ? self.retention.matches('^[0-9]+$') : \
                 self.retention.matches('{DURATION}'))"
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
    let list = |words: &[&str]| {
        words
            .iter()
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let prefixes = OWNED_PREFIXES
        .iter()
        .map(|prefix| format!("key.startsWith('{prefix}')"))
        .collect::<Vec<_>>()
        .join(" || ");
    vec![
        rule(
            "spec.etcdOptions",
            "self.all(key, !key.startsWith('-'))",
            "write flags without their dashes, for example heartbeat-interval: \"250\"",
        ),
        rule(
            "spec.etcdOptions",
            format!("self.all(key, !(key in [{}] || {prefixes}))", list(OWNED_FLAGS)),
            "addresses, names, data directory, membership and certificates are set by Stateward: remove these flags",
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

fn cron() -> String {
    format!("self == '' || self.matches('{CRON}')")
}

const BLOCKS: [(&str, &str); 5] = [
    ("s3", "S3"),
    ("abs", "ABS"),
    ("gcs", "GCS"),
    ("oss", "OSS"),
    ("file", "File"),
];

/// `[has(self.s3), …].filter(set, set).size()`: how many store blocks are set.
fn blocks_set() -> String {
    let blocks = BLOCKS.map(|(block, _)| format!("has(self.{block})")).join(", ");
    format!("[{blocks}].filter(set, set).size()")
}

/// What holds for the store blocks wherever they are.
fn store_blocks(at: &str, type_field: &str) -> Vec<Rule> {
    let mut rules = vec![rule(
        at,
        format!("{} <= 1", blocks_set()),
        "more than one store is given: keep one of s3, abs, gcs, oss, file",
    )];
    let named = BLOCKS
        .map(|(block, word)| format!("self.{type_field} == '{word}' && has(self.{block})"))
        .join(" || ");
    rules.push(rule(
        at,
        format!(
            "!has(self.{type_field}) || self.{type_field} == '' || {} == 0 || {named}",
            blocks_set()
        ),
        format!("{type_field} names another store than the block that is given: change one of them"),
    ));
    for (block, _) in BLOCKS {
        let at = format!("{at}.{block}");
        if block == "file" {
            rules.push(rule(
                at.as_str(),
                "has(self.claimName) && self.claimName != ''",
                "file needs a claim: set claimName to the name of a PersistentVolumeClaim",
            ));
            rules.push(rule(
                at,
                r"has(self.path) && self.path != '' && !self.path.startsWith('/') && !self.path.matches('(^|/)\\.\\.(/|$)')",
                "path must be a file below the root of the claim, for example etcd/etcd.backup",
            ));
        } else {
            rules.push(rule(
                at,
                "has(self.path) && self.path.matches('^[^/]+/.')",
                "path must be bucket and key, for example mybucket/etcd.backup",
            ));
        }
    }
    rules
}

/// What holds for backups wherever they are.
fn backup_plan(at: &str) -> Vec<Rule> {
    let scheduled = "has(self.schedule) && self.schedule != ''";
    let interval = "has(self.backupPolicy) && has(self.backupPolicy.backupIntervalInSecond) && self.backupPolicy.backupIntervalInSecond > 0";
    vec![
        rule(
            at,
            format!("{} >= 1", blocks_set()),
            "no store is given: set one of s3, abs, gcs, oss, file",
        ),
        rule(format!("{at}.schedule"), cron(), format!("schedule {CRON_MESSAGE}")),
        rule(
            at,
            format!("!({scheduled}) || !({interval})"),
            "schedule and backupPolicy.backupIntervalInSecond both say when: keep one of them",
        ),
        rule(
            at,
            format!("!(has(self.continuous) && self.continuous) || {scheduled} || {interval}"),
            "continuous needs snapshots to start from: set schedule or backupPolicy.backupIntervalInSecond",
        ),
        rule(format!("{at}.encryption"), HAS_KEY, HAS_KEY_MESSAGE),
    ]
}

const HAS_KEY: &str = "has(self.secretKeyRef) && has(self.secretKeyRef.name) && self.secretKeyRef.name != ''";
const HAS_KEY_MESSAGE: &str = "encryption needs a key: set secretKeyRef.name";

/// What EtcdBackup refuses.
pub(crate) fn etcd_backup() -> Vec<Rule> {
    let endpoints = "has(self.etcdEndpoints) && self.etcdEndpoints.size() > 0";
    let reference = "has(self.clusterRef) && has(self.clusterRef.name) && self.clusterRef.name != ''";
    let mut rules = vec![
        rule(
            "spec",
            format!("({endpoints}) || ({reference})"),
            "nothing to back up is named: set clusterRef.name or etcdEndpoints",
        ),
        rule(
            "spec",
            format!("!({endpoints}) || !({reference})"),
            "clusterRef and etcdEndpoints both name what to back up: keep one of them",
        ),
    ];
    rules.extend(store_blocks("spec", "storageType"));
    rules.extend(backup_plan("spec"));
    rules
}

/// What EtcdRestore refuses.
pub(crate) fn etcd_restore() -> Vec<Rule> {
    let reference = "has(self.backupRef) && has(self.backupRef.name) && self.backupRef.name != ''";
    let blocks = blocks_set();
    let mut rules = vec![
        rule(
            "",
            "!has(self.spec.etcdCluster) || !has(self.spec.etcdCluster.name) || self.spec.etcdCluster.name == '' || \
             self.spec.etcdCluster.name == self.metadata.name",
            "an EtcdRestore is named like the cluster that it puts back: set metadata.name to etcdCluster.name",
        ),
        rule(
            "spec",
            format!("{blocks} >= 1 || ({reference})"),
            "no backup is named: set backupRef.name, or one of s3, abs, gcs, oss, file",
        ),
        rule(
            "spec",
            format!("{blocks} == 0 || !({reference})"),
            "backupRef and a store block both name a backup: keep one of them",
        ),
        rule(
            "spec.restoreTo",
            "!(has(self.revision) && self.revision > 0 && has(self.time))",
            "restoreTo names a revision and a time: keep one of them",
        ),
        rule("spec.encryption", HAS_KEY, HAS_KEY_MESSAGE),
        rule(
            "spec.backupRef",
            "!has(self.name) || !has(oldSelf.name) || self.name == oldSelf.name",
            "a restore cannot be turned to another backup: delete this EtcdRestore and create another",
        ),
    ];
    rules.extend(store_blocks("spec", "backupStorageType"));
    for (block, _) in BLOCKS {
        rules.push(rule(
            format!("spec.{block}"),
            "!has(self.path) || !has(oldSelf.path) || self.path == oldSelf.path",
            "a restore cannot be turned to another backup: delete this EtcdRestore and create another",
        ));
    }
    rules
}

/// Bounds of what the rules of EtcdCluster read, and of numbers.
pub(crate) fn etcd_cluster_bounds() -> Vec<Bound> {
    let mut bounds = vec![
        bound("spec.size", "minimum", 1),
        bound("spec.size", "maximum", 7),
        bound("spec.version", "maxLength", 64),
        bound("spec.repository", "maxLength", 255),
        bound("spec.priorityClassName", "maxLength", 253),
        bound("spec.topologySpreadConstraints", "maxItems", 16),
        bound("spec.etcdOptions", "maxProperties", 64),
        bound("spec.etcdOptions.{}", "maxLength", 1024),
        bound("spec.pod.ClusterDomain", "maxLength", 253),
        bound("spec.pod.labels", "maxProperties", 64),
        bound("spec.pod.annotations", "maxProperties", 64),
        bound("spec.service.labels", "maxProperties", 64),
        bound("spec.service.annotations", "maxProperties", 64),
        bound("spec.service.nodePort", "minimum", 0),
        bound("spec.service.nodePort", "maximum", 65535),
        bound("spec.service.loadBalancerSourceRanges", "maxItems", 64),
        bound("spec.storage.annotations", "maxProperties", 64),
        bound("spec.storage.size", "maxLength", 32),
        bound("spec.storage.storageClassName", "maxLength", 253),
        bound("spec.TLS.static.operatorSecret", "maxLength", 253),
        bound("spec.TLS.static.member.peerSecret", "maxLength", 253),
        bound("spec.TLS.static.member.serverSecret", "maxLength", 253),
        bound("spec.TLS.auto.caSecret", "maxLength", 253),
        bound("spec.TLS.auto.validityDays", "minimum", 0),
        bound("spec.TLS.auto.validityDays", "maximum", 3650),
        bound("spec.TLS.certManager.duration", "maxLength", 32),
        bound("spec.TLS.certManager.renewBefore", "maxLength", 32),
        bound("spec.maintenance.quota", "maxLength", 32),
        bound("spec.maintenance.defragmentation.minSize", "maxLength", 32),
        bound("spec.maintenance.defragmentation.minFreePercent", "minimum", 0),
        bound("spec.maintenance.defragmentation.minFreePercent", "maximum", 100),
        bound("spec.maintenance.defragmentation.schedule", "maxLength", 256),
        bound("spec.maintenance.autoCompaction.retention", "maxLength", 32),
        bound("spec.recovery.delaySeconds", "minimum", 0),
        bound("spec.recovery.nodeLossSeconds", "minimum", 0),
        bound("spec.recovery.backupRef.name", "maxLength", 253),
        bound("spec.updateStrategy.minReadySeconds", "minimum", 0),
        bound("spec.metrics.port", "minimum", 0),
        bound("spec.metrics.port", "maximum", 65535),
    ];
    for names in [
        "auto.dnsNames",
        "auto.ipAddresses",
        "certManager.dnsNames",
        "certManager.ipAddresses",
    ] {
        bounds.push(bound(format!("spec.TLS.{names}"), "maxItems", 64));
        bounds.push(bound(format!("spec.TLS.{names}.[]"), "maxLength", 253));
    }
    for issuer in ["issuerRef", "peerIssuerRef"] {
        bounds.push(bound(format!("spec.TLS.certManager.{issuer}.name"), "maxLength", 253));
    }
    bounds.extend(store_bounds("spec.backup"));
    bounds.extend(backup_plan_bounds("spec.backup"));
    for (field, default) in [
        ("spec.repository", json!(crate::DEFAULT_REPOSITORY)),
        ("spec.storage.retain", json!("Delete")),
        ("spec.maintenance.autoCompaction.mode", json!("Periodic")),
        ("spec.recovery.onQuorumLoss", json!("Report")),
        ("spec.recovery.delaySeconds", json!(Recovery::DEFAULT_DELAY_SECONDS)),
        (
            "spec.recovery.nodeLossSeconds",
            json!(Recovery::DEFAULT_NODE_LOSS_SECONDS),
        ),
        ("spec.updateStrategy.type", json!("RollingUpdate")),
        ("spec.service.type", json!("ClusterIP")),
        ("spec.metrics.port", json!(METRICS_PORT)),
        ("spec.metrics.mode", json!("Basic")),
    ] {
        bounds.push(bound(field, "default", default));
    }
    bounds.extend(list_bounds());
    bounds.extend([bound("status.memberStatuses", "x-kubernetes-list-type", "map")]);
    bounds.extend([bound(
        "status.memberStatuses",
        "x-kubernetes-list-map-keys",
        json!(["name"]),
    )]);
    bounds.extend([bound("status.memberStatuses.[]", "required", json!(["name"]))]);
    bounds
}

/// Conditions are found by their type, by people and by server-side apply.
fn list_bounds() -> Vec<Bound> {
    vec![
        bound("status.conditions", "x-kubernetes-list-type", "map"),
        bound("status.conditions", "x-kubernetes-list-map-keys", json!(["type"])),
        bound("status.conditions.[]", "required", json!(["type"])),
    ]
}

fn store_bounds(at: &str) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for (block, _) in BLOCKS {
        bounds.push(bound(format!("{at}.{block}.path"), "maxLength", 1024));
    }
    bounds.push(bound(format!("{at}.file.claimName"), "maxLength", 253));
    bounds
}

fn backup_plan_bounds(at: &str) -> Vec<Bound> {
    let mut bounds = vec![
        bound(format!("{at}.schedule"), "maxLength", 256),
        bound(format!("{at}.encryption.secretKeyRef.name"), "maxLength", 253),
    ];
    for number in [
        "timeoutInSecond",
        "backupIntervalInSecond",
        "maxBackups",
        "maxAgeInSecond",
    ] {
        bounds.push(bound(format!("{at}.backupPolicy.{number}"), "minimum", 0));
    }
    for (field, default) in [
        ("verify", "Check"),
        ("compression", "None"),
        ("deletionPolicy", "Retain"),
    ] {
        bounds.push(bound(format!("{at}.{field}"), "default", default));
    }
    bounds
}

/// Bounds of what the rules of EtcdBackup read, and of numbers.
pub(crate) fn etcd_backup_bounds() -> Vec<Bound> {
    let mut bounds = vec![
        bound("spec.etcdEndpoints", "maxItems", 64),
        bound("spec.etcdEndpoints.[]", "maxLength", 1024),
        bound("spec.clusterRef.name", "maxLength", 253),
        bound("spec.clientTLSSecret", "maxLength", 253),
    ];
    bounds.extend(store_bounds("spec"));
    bounds.extend(backup_plan_bounds("spec"));
    bounds.extend(list_bounds());
    bounds
}

/// Bounds of what the rules of EtcdRestore read, and of numbers.
pub(crate) fn etcd_restore_bounds() -> Vec<Bound> {
    let mut bounds = vec![
        bound("spec.etcdCluster.name", "maxLength", 253),
        bound("spec.backupRef.name", "maxLength", 253),
        bound("spec.encryption.secretKeyRef.name", "maxLength", 253),
        bound("spec.restoreTo.revision", "minimum", 0),
        bound("spec.revisionBump", "minimum", 0),
    ];
    bounds.extend(store_bounds("spec"));
    bounds.extend(list_bounds());
    bounds
}
