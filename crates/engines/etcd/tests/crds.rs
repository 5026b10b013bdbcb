//! The committed definitions are the generated ones.

use std::path::Path;

/// kubectl keeps the applied object in an annotation, which may not be longer.
const APPLY_LIMIT: usize = 262_144;

#[test]
fn committed_definitions_are_the_generated_ones() {
    let folder = Path::new("../../../deploy/crds");
    for (name, content) in stateward_etcd::api::crds::files() {
        let committed = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(
            committed == content,
            "deploy/crds/{name} is not what the types say: run ./x crds"
        );
    }
}

#[test]
fn every_definition_can_be_applied_by_kubectl() {
    for crd in stateward_etcd::api::crds::all() {
        let length = serde_json::to_string(&crd).expect("JSON").len();
        assert!(length < APPLY_LIMIT, "{:?} has {length} bytes", crd.metadata.name);
    }
}

#[test]
fn every_field_says_what_it_is() {
    for crd in stateward_etcd::api::crds::all() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let crd = serde_json::to_value(crd).expect("JSON");
        let mut silent = Vec::new();
        describe(
            &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
            "",
            &mut silent,
        );
        assert!(silent.is_empty(), "{name}: no description of {silent:?}");
    }
}

fn describe(schema: &serde_json::Value, path: &str, silent: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        // the API server documents metadata itself
        if path != ".metadata" && property["description"].as_str().is_none_or(str::is_empty) {
            silent.push(path.clone());
        }
        describe(property, &path, silent);
    }
    for inner in ["items", "additionalProperties"]
        .into_iter()
        .filter_map(|keyword| schema.get(keyword))
    {
        describe(inner, path, silent);
    }
}
