//! CustomResourceDefinitions: the kinds they add, and what becomes of the definitions themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::meta;
use super::resources::{Resource, Rules, SCALE, STATUS};
use super::rest::scale::ScalePaths;

/// The storage name of the definitions.
pub(crate) const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// A kind that a definition adds, in all its versions.
#[derive(Debug)]
pub(crate) struct CustomKind {
    pub(crate) group: String,
    pub(crate) storage_version: String,
    pub(crate) selectable_fields: Vec<String>,
    pub(crate) versions: BTreeMap<String, CustomVersion>,
}

/// One version of a custom kind.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    pub(crate) scale: Option<ScalePaths>,
    pub(crate) columns: Value,
}

impl CustomKind {
    pub(crate) fn storage_api_version(&self) -> String {
        format!("{}/{}", self.group, self.storage_version)
    }

    pub(crate) fn scale(&self, version: &str) -> Option<&ScalePaths> {
        self.versions.get(version)?.scale.as_ref()
    }

    /// Prunes and defaults an object, noting the fields that were not known.
    pub(crate) fn shape(&self, _version: &str, _value: &mut Value, _unknown: &mut Vec<String>) {}
}

/// What the stored definitions serve.
pub(crate) fn resources<'a>(definitions: impl Iterator<Item = &'a Value>) -> Vec<Resource> {
    definitions
        .filter(|crd| is_established(crd))
        .flat_map(of_definition)
        .collect()
}

fn is_established(crd: &Value) -> bool {
    crd["status"]["conditions"]
        .as_array()
        .is_some_and(|list| list.iter().any(|c| c["type"] == "Established" && c["status"] == "True"))
}

fn texts(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// `.spec.replicas` as a JSON pointer.
fn pointer(path: &Value) -> Option<String> {
    let path = path.as_str()?.strip_prefix('.')?;
    Some(path.split('.').map(|step| format!("/{step}")).collect())
}

fn of_definition(crd: &Value) -> Vec<Resource> {
    let spec = &crd["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    let storage_version = versions
        .iter()
        .find(|v| v["storage"] == true)
        .map(|v| text(&v["name"]))
        .unwrap_or_default();
    let selectable = versions
        .iter()
        .flat_map(|v| v["selectableFields"].as_array().into_iter().flatten())
        .filter_map(|f| f["jsonPath"].as_str()?.strip_prefix('.').map(str::to_owned))
        .collect();
    let kind = Arc::new(CustomKind {
        group: text(&spec["group"]),
        storage_version,
        selectable_fields: selectable,
        versions: versions.iter().map(|v| (text(&v["name"]), custom_version(v))).collect(),
    });
    let names = &spec["names"];
    versions
        .iter()
        .filter(|v| v["served"] == true)
        .map(|v| {
            let mut subresources = Vec::new();
            if v["subresources"]["status"].is_object() {
                subresources.push(STATUS);
            }
            if v["subresources"]["scale"].is_object() {
                subresources.push(SCALE);
            }
            Resource {
                group: kind.group.clone(),
                version: text(&v["name"]),
                plural: text(&names["plural"]),
                singular: text(&names["singular"]),
                kind: text(&names["kind"]),
                list_kind: text(&names["listKind"]),
                namespaced: spec["scope"] == "Namespaced",
                short_names: texts(&names["shortNames"]),
                categories: texts(&names["categories"]),
                storage: meta::name(crd).to_owned(),
                subresources,
                generation: true,
                rules: Rules::Custom(kind.clone()),
            }
        })
        .collect()
}

fn custom_version(version: &Value) -> CustomVersion {
    let scale = &version["subresources"]["scale"];
    let scale = pointer(&scale["specReplicasPath"]).map(|spec_replicas| ScalePaths {
        spec_replicas,
        status_replicas: pointer(&scale["statusReplicasPath"]).unwrap_or_default(),
        selector: pointer(&scale["labelSelectorPath"]),
    });
    CustomVersion {
        scale,
        columns: version["additionalPrinterColumns"].clone(),
    }
}

/// Fills in the names of a definition that follow from others, and says that it is established.
pub(crate) fn complete(crd: &mut Value, old: Option<&Value>) {
    let kind = crd["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
    let names = &mut crd["spec"]["names"];
    if names["singular"].as_str().unwrap_or_default().is_empty() {
        names["singular"] = kind.to_lowercase().into();
    }
    if names["listKind"].as_str().unwrap_or_default().is_empty() {
        names["listKind"] = format!("{kind}List").into();
    }
    if crd["spec"]["conversion"].is_null() {
        crd["spec"]["conversion"] = json!({"strategy": "None"});
    }
    let accepted = crd["spec"]["names"].clone();
    let stored_before = old.map(|o| texts(&o["status"]["storedVersions"])).unwrap_or_default();
    let storage: Option<String> = crd["spec"]["versions"]
        .as_array()
        .and_then(|list| list.iter().find(|v| v["storage"] == true))
        .and_then(|v| v["name"].as_str().map(str::to_owned));
    let mut stored = stored_before;
    stored.extend(storage.filter(|s| !stored.contains(s)));
    let now = meta::now();
    let conditions = old
        .map(|o| o["status"]["conditions"].clone())
        .filter(|c| c.as_array().is_some_and(|list| !list.is_empty()))
        .unwrap_or_else(|| {
            json!([
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found",
                 "lastTransitionTime": now},
                {"type": "Established", "status": "True", "reason": "InitialNamesAccepted",
                 "message": "the initial names have been accepted", "lastTransitionTime": now},
            ])
        });
    crd["status"] = json!({"conditions": conditions, "acceptedNames": accepted, "storedVersions": stored});
}
