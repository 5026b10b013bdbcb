//! The committed definitions are the generated ones.

use std::path::Path;

/// kubectl keeps the applied object in an annotation, which may not be longer.
const APPLY_LIMIT: usize = 262_144;

#[test]
fn committed_definitions_are_the_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for (name, content) in stateward_api::crds::files() {
        let committed = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(
            committed == content,
            "deploy/crds/{name} is not what the types say: run ./x crds"
        );
    }
}

#[test]
fn every_definition_can_be_applied_by_kubectl() {
    for crd in stateward_api::crds::all() {
        let length = serde_json::to_string(&crd).expect("JSON").len();
        assert!(length < APPLY_LIMIT, "{:?} has {length} bytes", crd.metadata.name);
    }
}
