//! CustomResourceDefinitions: the kinds that they add, and their life cycle.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::errors::{FieldError, Result, Status};
use super::meta;
use super::resources::{Resource, Rules, SCALE, STATUS};
use super::rest::Call;
use super::rest::delete::{self, DeleteOptions};
use super::rest::scale::ScalePaths;
use super::rest::update::{Part, modify};
use super::server::Server;
use super::store::Key;
use crate::schema::table::Columns;
use crate::schema::{crd_check, custom};

/// The storage name of the definitions.
pub(crate) const STORAGE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The finalizer of a definition until all its objects are deleted.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

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
    pub(crate) columns: Columns,
    pub(crate) schema: custom::CustomKind,
    /// The schema as it was written, for OpenAPI.
    pub(crate) open_api: Value,
}

impl CustomKind {
    pub(crate) fn storage_api_version(&self) -> String {
        format!("{}/{}", self.group, self.storage_version)
    }

    pub(crate) fn scale(&self, version: &str) -> Option<&ScalePaths> {
        self.versions.get(version)?.scale.as_ref()
    }

    /// Prunes and defaults an object, noting the fields that were not known.
    pub(crate) fn shape(&self, version: &str, value: &mut Value, unknown: &mut Vec<String>) {
        if let Some(version) = self.versions.get(version) {
            unknown.extend(version.schema.admit(value));
        }
    }

    pub(crate) fn validate(&self, version: &str, old: Option<&Value>, new: &Value, part: Part) -> Vec<FieldError> {
        match (self.versions.get(version), old) {
            (None, _) => Vec::new(),
            (Some(version), Some(old)) if part == Part::Status => version.schema.validate_status(new, old),
            (Some(version), old) => version.schema.validate(new, old),
        }
    }
}

/// The kinds of the stored definitions.
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
    // Definitions were checked when they were stored; one that no longer compiles validates nothing.
    let schema = custom::CustomKind::new(&version["schema"]["openAPIV3Schema"], "")
        .unwrap_or_default()
        .with_subresources(version.get("subresources"));
    CustomVersion {
        scale,
        columns: Columns::custom(version.get("additionalPrinterColumns")),
        schema,
        open_api: version["schema"]["openAPIV3Schema"].clone(),
    }
}

/// Sets the derived names of a definition, and its condition Established.
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

/// The errors of a definition.
pub(crate) fn validate(crd: &Value) -> Vec<FieldError> {
    let mut errors = crd_check::check(crd);
    for (path, schema) in crd_check::schemas(&crd["spec"]) {
        if let Err(wrong) = custom::CustomKind::new(schema, &path) {
            errors.extend(wrong);
        }
    }
    errors
}

/// Rejects new objects of a kind whose definition is being deleted.
pub(crate) fn reject_while_terminating(call: &Call) -> Result<()> {
    let definition = call.server.store.get(&Key::new(STORAGE, "", &call.resource.storage));
    if definition.is_some_and(|crd| meta::is_deleting(&crd.value)) {
        let text = "create not allowed while custom resource definition is terminating";
        return Err(Status::new(405, "MethodNotAllowed", text));
    }
    Ok(())
}

/// Deletes the objects of a definition that is being deleted, then removes its finalizer. Ends early if the server
/// stops.
///
/// Boxed, because it writes, and a write may start a clean-up.
pub(crate) fn clean_up(server: Arc<Server>, name: String) -> BoxFuture<'static, ()> {
    let work = async move {
        let stop = server.stop.clone();
        tokio::select! {
            done = empty_and_release(&server, &name) => {
                if let Err(e) = done {
                    tracing::warn!(definition = %name, error = %e, "cannot clean up after a definition");
                }
            }
            () = stop.cancelled() => {}
        }
    };
    work.boxed()
}

async fn empty_and_release(server: &Arc<Server>, name: &str) -> Result<()> {
    let Some(crds) = server
        .registry()
        .any_version("apiextensions.k8s.io", "customresourcedefinitions")
        .cloned()
    else {
        return Ok(());
    };
    let mut changes = server.store.log(name).subscribe();
    loop {
        changes.borrow_and_update();
        let Some(crd) = server.store.get(&Key::new(STORAGE, "", name)) else {
            return Ok(());
        };
        let group = crd.value["spec"]["group"].as_str().unwrap_or_default();
        let plural = crd.value["spec"]["names"]["plural"].as_str().unwrap_or_default();
        let Some(resource) = server.registry().any_version(group, plural).cloned() else {
            break;
        };
        let snapshot = server.store.snapshot();
        let mut left = false;
        for (_, object) in snapshot.list(name, "", None) {
            left = true;
            if meta::is_deleting(&object.value) {
                continue;
            }
            let call = server.own_call(
                resource.clone(),
                meta::namespace(&object.value),
                meta::name(&object.value),
            );
            match delete::delete_one(&call, meta::name(&object.value), &DeleteOptions::default()).await {
                Ok(_) => {}
                Err(e) if e.code == 404 => {}
                Err(e) => return Err(e),
            }
        }
        if !left {
            break;
        }
        // Objects with finalizers are deleted when these are removed.
        if changes.changed().await.is_err() {
            return Ok(());
        }
    }
    let call = server.own_call(crds, "", name);
    let released = modify(&call, name, |current| {
        let mut next = current.value.clone();
        let finalizers = meta::finalizers(&next).into_iter().filter(|f| f != FINALIZER).collect();
        meta::set_finalizers(&mut next, finalizers);
        Ok(next)
    });
    match released.await {
        Err(e) if e.code == 404 => Ok(()),
        done => done.map(|_| ()),
    }
}
