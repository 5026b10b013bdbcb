//! Patches: JSON patch, merge patch, strategic merge patch and server-side apply.

use http::Response;
use serde_json::Value;

use super::update::{Part, check_identity, modify, prepare};
use super::{Call, accept, create, present};
use crate::api::body::Body;
use crate::api::errors::{Result, Status};
use crate::api::managed;
use crate::api::meta;

#[derive(Debug)]
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

impl Patch {
    fn read(call: &Call) -> Result<Self> {
        let json = |body: &[u8]| -> Result<Value> {
            serde_json::from_slice(body).map_err(|e| Status::bad_request(format!("error decoding patch: {e}")))
        };
        let object = |body: &[u8]| -> Result<Value> {
            let value = json(body)?;
            if value.is_object() {
                Ok(value)
            } else {
                Err(Status::bad_request("error decoding patch: not an object"))
            }
        };
        match call.content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => serde_json::from_slice(&call.body)
                .map(Self::Json)
                .map_err(|e| Status::bad_request(format!("error decoding patch: {e}"))),
            "application/merge-patch+json" => object(&call.body).map(Self::Merge),
            "application/strategic-merge-patch+json" if call.resource.custom().is_none() => {
                object(&call.body).map(Self::Strategic)
            }
            "application/apply-patch+yaml" | "application/apply-patch+json" => {
                accept::parse("application/yaml", &call.body).map(Self::Apply)
            }
            _ => Err(Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type")),
        }
    }

    /// A patch of a `Scale`: the plain kinds of patch only.
    pub(crate) fn read_for_scale(call: &Call) -> Result<Self> {
        match Self::read(call)? {
            Self::Apply(value) => Ok(Self::Merge(value)),
            Self::Strategic(value) => Ok(Self::Merge(value)),
            patch => Ok(patch),
        }
    }

    /// Applies a JSON or merge patch to a value that is no stored object.
    pub(crate) fn apply_plainly(&self, shown: &Value) -> Result<Value> {
        let mut value = shown.clone();
        match self {
            Self::Json(patch) => json_patch::patch(&mut value, patch).map_err(|e| {
                let text = "the server rejected our request due to an error in our request";
                Status::new(422, "Invalid", format!("{text}: {e}"))
            })?,
            Self::Merge(patch) | Self::Strategic(patch) | Self::Apply(patch) => json_patch::merge(&mut value, patch),
        }
        Ok(value)
    }

    /// The object after the patch, in the version of the request.
    pub(crate) fn apply(&self, call: &Call, shown: &Value) -> Result<Value> {
        match self {
            Self::Json(_) | Self::Merge(_) => self.apply_plainly(shown),
            Self::Strategic(patch) => managed::strategic_merge(call, shown, patch),
            Self::Apply(applied) => managed::apply(call, Some(shown), applied),
        }
    }
}

pub(crate) async fn patch(call: &Call) -> Result<Response<Body>> {
    let patch = Patch::read(call)?;
    let name = call.path.name.as_str();
    let part = Part::of(call);
    if let Patch::Apply(applied) = &patch {
        check_apply(call, applied)?;
        if call.server.store.get(&call.key(name)).is_none() {
            if part != Part::Main {
                return Err(Status::not_found(&call.resource, name));
            }
            let fresh = managed::apply(call, None, applied)?;
            let mut shaped = accept::shape(call, fresh)?;
            accept::check_place(call, &mut shaped, Some(name))?;
            match create::store_new(call, shaped, managed::Change::Apply).await {
                // Another client created it meanwhile: then this is an ordinary apply.
                Err(e) if e.reason == "AlreadyExists" => {}
                made => return made.map(|made| call.answer(201, &made)),
            }
        }
    }
    let changed = modify(call, name, |current| {
        let shown = present::value(&call.resource, &current.value);
        let mut next = patch.apply(call, &shown)?;
        accept::check_kind(&call.resource, &next)?;
        check_identity(call, current, &next)?;
        accept::check_place(call, &mut next, Some(name))?;
        let shaped = accept::shape(call, next)?;
        let change = match &patch {
            Patch::Apply(_) => managed::Change::Apply,
            _ => managed::Change::Update,
        };
        prepare(call, &current.value, shaped, part, change)
    })
    .await?;
    Ok(call.answer(200, &changed))
}

fn check_apply(call: &Call, applied: &Value) -> Result<()> {
    if call.query.get("fieldManager").is_none() {
        return Err(Status::new(
            422,
            "Invalid",
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ));
    }
    accept::check_kind(&call.resource, applied)?;
    for field in ["apiVersion", "kind"] {
        if applied[field].as_str().unwrap_or_default().is_empty() {
            return Err(Status::bad_request(format!("{field} must be set in an apply patch")));
        }
    }
    if applied["metadata"].get("managedFields").is_some_and(|f| !f.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let found = meta::name(applied);
    if !found.is_empty() && found != call.path.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({})",
            call.path.name
        )));
    }
    Ok(())
}
