//! Bounds of what rules read, bounds of numbers, defaults, and how lists are merged.

use serde_json::json;

use super::backups::BLOCKS;
use super::{Bound, bound};
use crate::api::SIZES;
use crate::api::etcd_cluster::Recovery;
use crate::api::names::METRICS_PORT;

/// Bounds of what the rules of EtcdCluster read, and of numbers.
pub(crate) fn etcd_cluster_bounds() -> Vec<Bound> {
    let mut bounds = vec![
        bound("spec.size", "minimum", *SIZES.start()),
        bound("spec.size", "maximum", *SIZES.end()),
        bound("spec.version", "maxLength", 64),
        bound("spec.repository", "maxLength", 255),
        bound("spec.priorityClassName", "maxLength", 253),
        bound("spec.topologySpreadConstraints", "maxItems", 16),
        bound("spec.etcdOptions", "maxProperties", 64),
        bound("spec.etcdOptions.{}", "maxLength", 1024),
        bound("spec.pod.ClusterDomain", "maxLength", 253),
        bound("spec.pod.etcdEnv", "maxItems", 256),
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
        bound("spec.TLS.auto.overlapSeconds", "minimum", 0),
        bound("spec.TLS.auto.overlapSeconds", "maximum", 604_800),
        bound("spec.TLS.certManager.overlapSeconds", "minimum", 0),
        bound("spec.TLS.certManager.overlapSeconds", "maximum", 604_800),
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
        bound("spec.recovery.keepOldClaimsSeconds", "minimum", 0),
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
        ("spec.repository", json!(crate::api::DEFAULT_REPOSITORY)),
        ("spec.storage.retain", json!("Delete")),
        ("spec.maintenance.autoCompaction.mode", json!("Periodic")),
        ("spec.recovery.onQuorumLoss", json!("Report")),
        ("spec.recovery.delaySeconds", json!(Recovery::DEFAULT_DELAY_SECONDS)),
        (
            "spec.recovery.nodeLossSeconds",
            json!(Recovery::DEFAULT_NODE_LOSS_SECONDS),
        ),
        (
            "spec.recovery.keepOldClaimsSeconds",
            json!(Recovery::DEFAULT_KEEP_OLD_CLAIMS_SECONDS),
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
