//! The subresources of pods and service accounts that do something.

use http::Response;
use http::request::Parts;

use serde_json::{Value, json};

use super::body::Body;
use super::errors::{FieldError, Result, Status};
use super::meta;
use super::rest::update::{check_identity, modify};
use super::rest::{Call, accept};

/// `log`, `exec`, `attach` and `portforward`.
pub(crate) async fn stream(
    _call: Call,
    _head: Parts,
    _upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>> {
    Err(Status::not_served())
}

/// `binding`, `eviction` and `token`.
pub(crate) async fn act(call: &Call, verb: &str) -> Result<Response<Body>> {
    if verb != "create" {
        return Err(Status::method_not_allowed());
    }
    match call.path.subresource.as_str() {
        "binding" => bind(call).await,
        _ => Err(Status::not_served()),
    }
}

/// Puts a pod on a node, once.
async fn bind(call: &Call) -> Result<Response<Body>> {
    let binding = accept::parse(&call.content_type, &call.body)?;
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let name = call.path.name.as_str();
    if node.is_empty() {
        return Err(Status::invalid(
            &call.resource,
            name,
            &[FieldError::required("target.name", "")],
        ));
    }
    modify(call, name, |current| {
        check_identity(call, current, &binding)?;
        let pod = &current.value;
        if meta::is_deleting(pod) {
            return Err(Status::conflict(
                &call.resource,
                name,
                format!("pod {name} is being deleted, cannot be assigned to a host"),
            ));
        }
        if let Some(bound) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
            return Err(Status::conflict(
                &call.resource,
                name,
                format!("pod {name} is already assigned to node {bound:?}"),
            ));
        }
        let mut next = pod.clone();
        next["spec"]["nodeName"] = node.clone().into();
        for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
            next["metadata"]["annotations"][key] = value.clone();
        }
        set_condition(
            &mut next,
            json!({
                "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": meta::now(),
            }),
        );
        Ok(next)
    })
    .await?;
    Ok(call.answer_value(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

fn set_condition(object: &mut Value, condition: Value) {
    let list = &mut object["status"]["conditions"];
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.retain(|c| c["type"] != condition["type"]);
        list.push(condition);
    }
}
