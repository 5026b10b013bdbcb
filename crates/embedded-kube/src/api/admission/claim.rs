//! Storage: claims, volumes and classes.

use serde_json::{Value, json};

use super::{default, text};
use crate::api::errors::{FieldError, Result, Status};
use crate::api::meta;
use crate::api::rest::Call;
use crate::api::store::Key;
use crate::schema::quantity::Quantity;

const CLASSES: &str = "storageclasses.storage.k8s.io";

pub(super) fn defaults(claim: &mut Value) {
    default(claim, "spec", json!({}));
    default(&mut claim["spec"], "volumeMode", "Filesystem");
    default(&mut claim["spec"], "resources", json!({}));
}

pub(super) fn volume_defaults(volume: &mut Value) {
    default(volume, "spec", json!({}));
    default(&mut volume["spec"], "volumeMode", "Filesystem");
    default(&mut volume["spec"], "persistentVolumeReclaimPolicy", "Retain");
}

pub(super) fn class_defaults(class: &mut Value) {
    default(class, "reclaimPolicy", "Delete");
    default(class, "volumeBindingMode", "Immediate");
}

/// A new claim without a class gets the default one, the newest if there are several.
pub(super) fn on_create(call: &Call, claim: &mut Value) {
    claim["status"] = json!({"phase": "Pending"});
    if !claim["spec"]["storageClassName"].is_null() {
        return;
    }
    let snapshot = call.server.store.snapshot();
    let is_default = |class: &Value| {
        text(
            &class["metadata"]["annotations"],
            "storageclass.kubernetes.io/is-default-class",
        ) == "true"
    };
    let chosen = snapshot
        .list(CLASSES, "", None)
        .map(|(_, class)| &class.value)
        .filter(|class| is_default(class))
        .max_by_key(|class| text(&class["metadata"], "creationTimestamp").to_owned());
    if let Some(class) = chosen {
        claim["spec"]["storageClassName"] = meta::name(class).into();
    }
}

fn requested(claim: &Value) -> Option<Quantity> {
    Quantity::parse(claim["spec"]["resources"]["requests"]["storage"].as_str()?)
}

pub(super) fn validate(call: &Call, old: Option<&Value>, new: &Value) -> Result<Vec<FieldError>> {
    let spec = &new["spec"];
    let mut errors = Vec::new();
    let modes = spec["accessModes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if modes.is_empty() {
        errors.push(FieldError::required(
            "spec.accessModes",
            "at least 1 access mode is required",
        ));
    }
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    for mode in modes.iter().filter(|m| !m.as_str().is_some_and(|m| MODES.contains(&m))) {
        let supported = MODES.map(str::to_owned);
        errors.push(FieldError::not_supported("spec.accessModes", mode.clone(), &supported));
    }
    match &spec["resources"]["requests"]["storage"] {
        Value::Null => errors.push(FieldError::required("spec.resources[storage]", "")),
        amount if requested(new).is_none() => {
            errors.push(FieldError::invalid(
                "spec.resources[storage]",
                amount.clone(),
                "is not a quantity",
            ));
        }
        amount if requested(new).is_some_and(|q| q.as_float() <= 0.0) => {
            errors.push(FieldError::invalid(
                "spec.resources[storage]",
                amount.clone(),
                "must be greater than zero",
            ));
        }
        _ => {}
    }
    let Some(old) = old else { return Ok(errors) };
    let frozen = |claim: &Value| {
        let mut spec = claim["spec"].clone();
        spec["resources"] = Value::Null;
        spec["volumeAttributesClassName"] = Value::Null;
        // The binder fills in the volume and a late default class once.
        if text(&old["spec"], "volumeName").is_empty() {
            spec["volumeName"] = Value::Null;
        }
        if old["spec"]["storageClassName"].is_null() {
            spec["storageClassName"] = Value::Null;
        }
        spec
    };
    let bound = old["status"]["phase"] == "Bound";
    let resources_changed = old["spec"]["resources"] != spec["resources"];
    if frozen(old) != frozen(new) || (resources_changed && !bound) {
        errors.push(FieldError::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    } else if resources_changed {
        let (before, after) = (requested(old), requested(new));
        if after < before {
            errors.push(FieldError::forbidden(
                "spec.resources.requests.storage",
                "field can not be less than status.capacity",
            ));
        } else if after > before {
            let class = call
                .server
                .store
                .get(&Key::new(CLASSES, "", text(spec, "storageClassName")));
            if !class.is_some_and(|class| class.value["allowVolumeExpansion"] == true) {
                let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the \
                           pvc must support resize";
                return Err(Status::forbidden(&call.resource, meta::name(new), why));
            }
        }
    }
    Ok(errors)
}

pub(super) fn validate_class(old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text(new, "provisioner").is_empty() {
        errors.push(FieldError::required("provisioner", ""));
    }
    if let Some(old) = old {
        for (field, why) in [
            ("parameters", "updates to parameters are forbidden."),
            ("provisioner", "updates to provisioner are forbidden."),
            ("reclaimPolicy", "updates to reclaimPolicy are forbidden."),
        ] {
            if old[field] != new[field] {
                errors.push(FieldError::forbidden(field, why));
            }
        }
    }
    errors
}
