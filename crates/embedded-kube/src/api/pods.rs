//! The subresources of pods and service accounts that are actions.

use http::request::Parts;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};

use super::body::{self, Body};
use super::errors::{FieldError, Result, Status};
use super::meta;
use super::rest::delete::{self, DeleteOptions};
use super::rest::update::{check_identity, modify};
use super::rest::{Call, accept};
use super::selector::label_selector_matches;
use crate::streams::{LogOptions, PodRef, StreamError};

impl From<StreamError> for Status {
    fn from(e: StreamError) -> Self {
        match e {
            StreamError::PodNotFound(_) => Self::new(404, "NotFound", e.to_string()),
            StreamError::BadRequest(text) => Self::bad_request(text),
            StreamError::Internal(text) => Self::new(500, "InternalError", text),
            StreamError::Io(e) => Self::internal(e),
        }
    }
}

/// `log`, `exec`, `attach` and `portforward`.
pub(crate) async fn stream(
    call: Call,
    head: Parts,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>> {
    let pod = call.current(&call.path.name)?;
    match call.path.subresource.as_str() {
        "log" => logs(&call, &pod.value).await,
        _ => super::streaming::serve(&call, &pod.value, head, upgrade).await,
    }
}

pub(crate) fn pod_ref(pod: &Value) -> PodRef {
    PodRef {
        namespace: meta::namespace(pod).to_owned(),
        name: meta::name(pod).to_owned(),
        uid: meta::uid(pod).to_owned(),
    }
}

/// The named container, or the only one.
pub(crate) fn container(pod: &Value, wanted: Option<&str>) -> Result<String> {
    let name = meta::name(pod);
    let names = |list: &str| -> Vec<&str> {
        pod["spec"][list]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str())
            .collect()
    };
    let (containers, init) = (names("containers"), names("initContainers"));
    match wanted {
        Some(wanted) if containers.contains(&wanted) || init.contains(&wanted) => Ok(wanted.to_owned()),
        Some(wanted) => Err(Status::bad_request(format!(
            "container {wanted} is not valid for pod {name}"
        ))),
        None => {
            let default = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
            match (default, containers.as_slice()) {
                (Some(default), all) if all.contains(&default) => Ok(default.to_owned()),
                (_, [only]) => Ok(only.to_string()),
                (_, several) => {
                    let mut text = format!(
                        "a container name must be specified for pod {name}, choose one of: [{}]",
                        several.join(" ")
                    );
                    if !init.is_empty() {
                        text.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
                    }
                    Err(Status::bad_request(text))
                }
            }
        }
    }
}

async fn logs(call: &Call, pod: &Value) -> Result<Response<Body>> {
    let query = &call.query;
    let since = match (query.number("sinceSeconds")?, query.get("sinceTime")) {
        (Some(seconds), _) => {
            let ago = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            jiff::Timestamp::now().checked_sub(ago).ok()
        }
        (None, Some(time)) => Some(
            time.parse()
                .map_err(|e| Status::bad_request(format!("invalid sinceTime {time:?}: {e}")))?,
        ),
        (None, None) => None,
    };
    let options = LogOptions {
        container: Some(container(pod, query.get("container"))?),
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
        tail_lines: query.number("tailLines")?,
        limit_bytes: query.number("limitBytes")?,
        since,
    };
    if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty() {
        return Err(Status::bad_request(format!(
            "pod {} does not have a host assigned",
            meta::name(pod)
        )));
    }
    let streams = call
        .server
        .streams
        .get()
        .ok_or_else(|| Status::internal("this cluster runs no nodes"))?;
    let lines = streams.logs(pod_ref(pod), options).await?;
    let mut response = Response::new(body::stream(lines));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// `binding`, `eviction` and `token`.
pub(crate) async fn act(call: &Call, verb: &str) -> Result<Response<Body>> {
    if verb != "create" {
        return Err(Status::method_not_allowed());
    }
    match call.path.subresource.as_str() {
        "binding" => {
            let binding = accept::parse(&call.content_type, &call.body)?;
            bind(call, &call.path.name, &binding).await
        }
        "eviction" => evict(call).await,
        "token" => super::reviews::issue_token(call),
        _ => Err(Status::not_served()),
    }
}

fn success(call: &Call) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    call.answer_value(201, &status)
}

/// `POST .../bindings`: the name of the pod is in the body.
pub(crate) async fn bind_by_body(call: &Call, binding: &Value) -> Result<Response<Body>> {
    let pods = call
        .server
        .registry()
        .find("", "v1", "pods")
        .cloned()
        .ok_or_else(Status::not_served)?;
    let name = meta::name(binding);
    let call = call.server.own_call(pods, &call.path.namespace, name);
    bind(&call, name, binding).await
}

/// Binds a pod to a node, once.
async fn bind(call: &Call, name: &str, binding: &Value) -> Result<Response<Body>> {
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    if node.is_empty() {
        return Err(Status::invalid(
            &call.resource,
            name,
            &[FieldError::required("target.name", "")],
        ));
    }
    modify(call, name, |current| {
        check_identity(call, current, binding)?;
        let pod = &current.value;
        if meta::is_deleting(pod) {
            let why = format!("pod {name} is being deleted, cannot be assigned to a host");
            return Err(Status::conflict(&call.resource, name, why));
        }
        if let Some(bound) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
            let why = format!("pod {name} is already assigned to node {bound:?}");
            return Err(Status::conflict(&call.resource, name, why));
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
    Ok(success(call))
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

/// Deletes a pod if the disruption budgets allow it.
async fn evict(call: &Call) -> Result<Response<Body>> {
    let eviction = accept::parse(&call.content_type, &call.body)?;
    let name = call.path.name.as_str();
    let mut options: DeleteOptions = match eviction.get("deleteOptions").filter(|o| !o.is_null()) {
        Some(options) => serde_json::from_value(options.clone())
            .map_err(|e| Status::bad_request(format!("couldn't read deleteOptions: {e}")))?,
        None => DeleteOptions::default(),
    };
    let dry_run = call.dry_run()? || options.dry_run.iter().any(|d| d == "All");
    if dry_run {
        options.dry_run = vec!["All".into()];
    }
    let pod = call.current(name)?;
    let ended = matches!(
        pod.value["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed" | "Pending")
    );
    if !ended && !meta::is_deleting(&pod.value) {
        take_from_budget(call, &pod.value, dry_run).await?;
    }
    delete::delete_one(call, name, &options).await?;
    Ok(success(call))
}

async fn take_from_budget(call: &Call, pod: &Value, dry_run: bool) -> Result<()> {
    let snapshot = call.server.store.snapshot();
    let budgets: Vec<&Value> = snapshot
        .values("poddisruptionbudgets.policy", call.namespace())
        .into_iter()
        .filter(|b| {
            b["spec"]["selector"].is_object()
                && label_selector_matches(&b["spec"]["selector"], &pod["metadata"]["labels"])
        })
        .collect();
    let budget = match budgets.as_slice() {
        [] => return Ok(()),
        [one] => meta::name(one).to_owned(),
        _ => {
            return Err(Status::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    let ready = pod["status"]["conditions"]
        .as_array()
        .is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
    let resource = call
        .server
        .registry()
        .find("policy", "v1", "poddisruptionbudgets")
        .cloned();
    let own = call
        .server
        .own_call(resource.ok_or_else(Status::not_served)?, call.namespace(), &budget);
    let pod_name = meta::name(pod).to_owned();
    let too_many = |message: &str, cause: Value| {
        let mut status = Status::new(429, "TooManyRequests", message);
        status.details = Some(json!({"causes": [cause]}));
        status
    };
    modify(&own, &budget, |current| {
        let status = &current.value["status"];
        let number = |field: &str| status[field].as_i64().unwrap_or(0);
        if number("observedGeneration") < current.value["metadata"]["generation"].as_i64().unwrap_or(0) {
            let message = format!("The disruption budget {budget} is still being processed by the server.");
            return Err(too_many(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                json!({"reason": "DisruptionBudget", "message": message}),
            ));
        }
        // The eviction of a pod that is not ready does not count while the budget is met without it.
        let always = current.value["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        if !ready && (always || (number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0))
        {
            return Ok(current.value.clone());
        }
        if number("disruptionsAllowed") <= 0 {
            let message = format!(
                "The disruption budget {budget} needs {} healthy pods and has {} currently",
                number("desiredHealthy"),
                number("currentHealthy")
            );
            return Err(too_many(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                json!({"reason": "DisruptionBudget", "message": message}),
            ));
        }
        let mut next = current.value.clone();
        if !dry_run {
            next["status"]["disruptionsAllowed"] = (number("disruptionsAllowed") - 1).into();
            if !next["status"]["disruptedPods"].is_object() {
                next["status"]["disruptedPods"] = json!({});
            }
            next["status"]["disruptedPods"][&pod_name] = meta::now().into();
        }
        Ok(next)
    })
    .await?;
    Ok(())
}
