//! The generated part of the Helm chart: its version, the CRDs and the RBAC rules. The rest of the chart is written by hand.

use anyhow::Result;
use serde_json::{Value, json};

use super::{GENERATED, VERSION, rbac};

/// Paths and contents.
pub(crate) fn files() -> Result<Vec<(String, String)>> {
    let file = |name: &str, value: &Value| -> Result<(String, String)> {
        let text = serde_yaml_ng::to_string(value)?;
        Ok((format!("charts/stateward/{name}"), format!("{GENERATED}{text}")))
    };
    let mut files = vec![
        file("Chart.yaml", &about())?,
        file("files/rules.yaml", &json!(rbac::in_namespaces()))?,
        file("files/rules-cluster.yaml", &json!(rbac::in_the_cluster()))?,
        file("files/rules-own.yaml", &json!(rbac::in_own_namespace()))?,
    ];
    for mut crd in stateward::crds() {
        // Ordinary templates, so that `helm upgrade` updates them; kept, because deleting a CRD deletes all its objects.
        let annotations = crd.metadata.annotations.get_or_insert_default();
        annotations.insert("helm.sh/resource-policy".into(), "keep".into());
        let name = format!("files/crds/{}.yaml", crd.spec.names.plural);
        files.push(file(&name, &serde_json::to_value(crd)?)?);
    }
    Ok(files)
}

fn about() -> Value {
    json!({
        "apiVersion": "v2",
        "name": "stateward",
        "description": "Runs stateful systems on Kubernetes as a careful human operator would: etcd and MySQL.",
        "type": "application",
        "version": VERSION,
        "appVersion": VERSION,
        "kubeVersion": ">=1.33.0-0",
        "home": env!("CARGO_PKG_REPOSITORY"),
        "sources": [env!("CARGO_PKG_REPOSITORY")],
        "keywords": ["etcd", "mysql", "operator", "database", "backup"],
        "annotations": {"artifacthub.io/license": "Apache-2.0", "artifacthub.io/operator": "true"},
    })
}
