//! What EtcdBackup and EtcdRestore refuse, and what holds for stores and backups wherever they are.

use super::{CRON_MESSAGE, Rule, cron, rule};
use stateward_core::store::token_message;

pub(super) const BLOCKS: [(&str, &str); 5] = [
    ("s3", "S3"),
    ("abs", "ABS"),
    ("gcs", "GCS"),
    ("oss", "OSS"),
    ("file", "File"),
];

/// The stores that are spoken to with a bearer token, and their field for a secret. S3 and OSS sign requests instead.
const BEARERS: [(&str, &str); 2] = [("abs", "absSecret"), ("gcs", "gcpSecret")];

/// `[has(self.s3), …].filter(set, set).size()`: how many store blocks are set.
fn blocks_set() -> String {
    let blocks = BLOCKS.map(|(block, _)| format!("has(self.{block})")).join(", ");
    format!("[{blocks}].filter(set, set).size()")
}

/// What holds for the store blocks wherever they are.
pub(super) fn store_blocks(at: &str, type_field: &str) -> Vec<Rule> {
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
                r"has(self.path) && self.path.matches('^[^/]') && !self.path.matches('(^|/)\\.\\.(/|$)')",
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
    for (block, secret) in BEARERS {
        rules.push(rule(
            format!("{at}.{block}"),
            format!("!has(self.endpoint) || self.endpoint == '' || (has(self.{secret}) && self.{secret} != '')"),
            token_message(secret),
        ));
    }
    rules
}

/// What holds for backups wherever they are.
pub(super) fn backup_plan(at: &str) -> Vec<Rule> {
    let scheduled = "has(self.schedule) && self.schedule != ''";
    let interval = "has(self.backupPolicy) && has(self.backupPolicy.backupIntervalInSecond) && \
                    self.backupPolicy.backupIntervalInSecond > 0";
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
             self.spec.etcdCluster.name == self.metadata.name || \
             self.metadata.name.startsWith(self.spec.etcdCluster.name + '-')",
            "an EtcdRestore is named like the cluster that it puts back, or like it with a dash and more: set metadata.name",
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
