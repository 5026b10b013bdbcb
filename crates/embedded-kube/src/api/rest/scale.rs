//! The `scale` subresource: the number of replicas, wherever the kind stores it.

use http::Response;
use serde_json::{Value, json};

use super::patch::Patch;
use super::update::{Part, check_identity, modify, prepare};
use super::{Call, accept};
use crate::api::body::Body;
use crate::api::errors::{FieldError, Result, Status};
use crate::api::managed;
use crate::api::meta;
use crate::api::store::Object;

/// Where a kind stores the fields of a `Scale`, as JSON pointers.
#[derive(Debug, Clone)]
pub(crate) struct ScalePaths {
    pub(crate) spec_replicas: String,
    pub(crate) status_replicas: String,
    pub(crate) selector: Option<String>,
}

impl ScalePaths {
    fn of(call: &Call) -> Result<Self> {
        match call.resource.custom() {
            Some(custom) => custom
                .scale(&call.resource.version)
                .cloned()
                .ok_or_else(Status::not_served),
            None => Ok(Self {
                spec_replicas: "/spec/replicas".into(),
                status_replicas: "/status/replicas".into(),
                selector: Some("/spec/selector".into()),
            }),
        }
    }

    fn show(&self, object: &Value) -> Value {
        let number = |path: &str| object.pointer(path).and_then(Value::as_i64).unwrap_or(0);
        let mut metadata = json!({});
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object["metadata"].get(field) {
                metadata[field] = value.clone();
            }
        }
        let mut scale = json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
            "spec": {}, "status": {"replicas": number(&self.status_replicas)},
        });
        if number(&self.spec_replicas) != 0 {
            scale["spec"]["replicas"] = number(&self.spec_replicas).into();
        }
        match self.selector.as_deref().and_then(|path| object.pointer(path)) {
            Some(Value::String(text)) => scale["status"]["selector"] = text.clone().into(),
            Some(selector) => scale["status"]["selector"] = selector_text(selector).into(),
            None => {}
        }
        scale
    }
}

/// A `LabelSelector` object in its text form.
fn selector_text(selector: &Value) -> String {
    let mut parts: Vec<String> = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    for e in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = e["key"].as_str().unwrap_or_default();
        let values: Vec<&str> = e["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        parts.push(match e["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.sort();
    parts.join(",")
}

pub(crate) async fn scale(call: &Call, verb: &str) -> Result<Response<Body>> {
    let paths = ScalePaths::of(call)?;
    let name = call.path.name.as_str();
    if verb == "get" {
        return Ok(call.answer_value(200, &paths.show(&call.current(name)?.value)));
    }
    let sent = match verb {
        "update" => Some(accept::parse(&call.content_type, &call.body)?),
        _ => None,
    };
    let patch = match sent {
        None => Some(Patch::read_for_scale(call)?),
        Some(_) => None,
    };
    let changed = modify(call, name, |current: &Object| {
        let shown = paths.show(&current.value);
        let wanted = match (&sent, &patch) {
            (Some(sent), _) => sent.clone(),
            (None, Some(patch)) => patch.apply_plainly(&shown)?,
            (None, None) => shown.clone(),
        };
        if wanted["kind"].as_str().is_some_and(|k| k != "Scale") {
            return Err(Status::bad_request("expected a Scale object (autoscaling/v1)"));
        }
        check_identity(call, current, &wanted)?;
        let replicas = match &wanted["spec"]["replicas"] {
            Value::Null => 0,
            number => number.as_i64().ok_or_else(|| {
                Status::bad_request(format!("Scale in version \"v1\" cannot be handled as a Scale: spec.replicas: {number} is not a whole number"))
            })?,
        };
        if replicas < 0 {
            let wrong = FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
            let mut status = Status::invalid(&call.resource, name, &[wrong]);
            status.message = status.message.replacen(&call.resource.kind, "Scale", 1);
            return Err(status);
        }
        let mut next = current.value.clone();
        set(&mut next, &paths.spec_replicas, replicas.into());
        prepare(call, &current.value, next, Part::Main, managed::Change::Update)
    })
    .await?;
    let mut shown = paths.show(&changed.value);
    shown["metadata"]["name"] = meta::name(&changed.value).into();
    Ok(call.answer_value(200, &shown))
}

/// Sets a value by its path and creates missing maps.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    for step in pointer.split('/').filter(|s| !s.is_empty()) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[step];
    }
    *at = value;
}
