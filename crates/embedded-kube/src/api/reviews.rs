//! Requests that are served immediately and never stored: who am I, may I, is this token valid. And the old way to
//! bind.

use http::Response;
use serde_json::{Value, json};

use super::auth::{User, rbac, tokens};
use super::body::Body;
use super::errors::{Result, Status};
use super::meta;
use super::rest::{Call, accept};
use super::store::Snapshot;

pub(crate) async fn serve(call: &Call, verb: &str) -> Result<Response<Body>> {
    if verb != "create" || !call.path.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    let mut review = accept::parse(&call.content_type, &call.body)?;
    accept::check_kind(&call.resource, &review)?;
    review["apiVersion"] = call.resource.api_version().into();
    review["kind"] = call.resource.kind.clone().into();
    if !review["metadata"].is_object() {
        review["metadata"] = json!({"creationTimestamp": null});
    }
    let snapshot = call.server.store.snapshot();
    let spec = review["spec"].clone();
    review["status"] = match call.resource.plural.as_str() {
        "bindings" => return super::pods::bind_by_body(call, &review).await,
        "selfsubjectaccessreviews" => decide(call, &snapshot, &call.user, &spec)?,
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            if call.resource.namespaced && spec["resourceAttributes"]["namespace"] != call.path.namespace.as_str() {
                return Err(Status::bad_request(
                    "spec.resourceAttributes.namespace must match the request's namespace",
                ));
            }
            let groups: Vec<&str> = spec["groups"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let mut user = User::new(spec["user"].as_str().unwrap_or_default(), &groups);
            // Exactly the requested groups.
            user.groups = groups.iter().map(|g| g.to_string()).collect();
            decide(call, &snapshot, &user, &spec)?
        }
        "selfsubjectrulesreviews" => rules_of(&snapshot, &call.user, spec["namespace"].as_str().unwrap_or_default()),
        "selfsubjectreviews" => json!({"userInfo": call.user.to_value()}),
        "tokenreviews" => review_token(call, &spec),
        _ => return Err(Status::not_served()),
    };
    Ok(call.answer_value(201, &review))
}

fn decide(call: &Call, snapshot: &Snapshot, user: &User, spec: &Value) -> Result<Value> {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let allowed = match (resource.is_object(), path.is_object()) {
        (true, false) => {
            let text = |field: &str| resource[field].as_str().unwrap_or_default();
            rbac::may(
                snapshot,
                user,
                text("verb"),
                text("group"),
                text("resource"),
                text("subresource"),
                text("namespace"),
                text("name"),
            )
        }
        (false, true) => {
            let text = |field: &str| path[field].as_str().unwrap_or_default();
            rbac::may_use_path(snapshot, user, text("verb"), text("path"))
        }
        _ => {
            return Err(Status::new(
                422,
                "Invalid",
                format!(
                    "{}.{} \"\" is invalid: spec.resourceAttributes: Invalid value: exactly one of \
                     nonResourceAttributes or resourceAttributes must be specified",
                    call.resource.kind, call.resource.group
                ),
            ));
        }
    };
    Ok(if allowed {
        json!({"allowed": true})
    } else {
        json!({"allowed": false})
    })
}

fn rules_of(snapshot: &Snapshot, user: &User, namespace: &str) -> Value {
    let everything = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    if user.is_master() {
        let urls = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
        return json!({"resourceRules": everything, "nonResourceRules": urls, "incomplete": false});
    }
    let rules = rbac::rules(snapshot, user, namespace);
    let of = |field: &str| -> Vec<&Value> {
        let filled = |rule: &&&Value| rule[field].as_array().is_some_and(|list| !list.is_empty());
        rules.iter().filter(filled).copied().collect()
    };
    json!({"resourceRules": of("resources"), "nonResourceRules": of("nonResourceURLs"), "incomplete": false})
}

/// The audiences of a token: the requested ones, or the API server itself.
fn audiences(spec: &Value) -> Vec<String> {
    let named = spec["audiences"].as_array().into_iter().flatten();
    let named: Vec<String> = named.filter_map(Value::as_str).map(str::to_owned).collect();
    if named.is_empty() {
        vec![tokens::ISSUER.to_owned()]
    } else {
        named
    }
}

fn review_token(call: &Call, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    let asked = audiences(spec);
    match call.server.authenticator.token_user(&call.server.store, token) {
        Some((user, audiences)) => {
            let common: Vec<&String> = asked.iter().filter(|a| audiences.contains(a)).collect();
            if common.is_empty() {
                return json!({"user": {}, "error": "the token is for another audience"});
            }
            json!({"authenticated": true, "user": user.to_value(), "audiences": common})
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    }
}

/// `serviceaccounts/NAME/token`: a new token for a service account.
pub(crate) fn issue_token(call: &Call) -> Result<Response<Body>> {
    let mut request = accept::parse(&call.content_type, &call.body)?;
    let account = call.current(&call.path.name)?;
    let spec = &request["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(3600);
    let invalid = |text: String| {
        Status::new(
            422,
            "Invalid",
            format!("TokenRequest.authentication.k8s.io \"\" is invalid: {text}"),
        )
    };
    if seconds < 600 {
        return Err(invalid(format!(
            "spec.expirationSeconds: Invalid value: {seconds}: may not specify a duration less than 10 minutes"
        )));
    }
    let audiences = audiences(spec);
    let mut about = json!({
        "namespace": call.path.namespace,
        "serviceaccount": {"name": call.path.name, "uid": meta::uid(&account.value)},
    });
    let bound = &spec["boundObjectRef"];
    if bound["kind"] == "Pod" {
        let name = bound["name"].as_str().unwrap_or_default();
        let pod = call
            .server
            .store
            .get(&super::store::Key::new("pods", &call.path.namespace, name));
        let pod = pod.ok_or_else(|| Status::new(404, "NotFound", format!("pods {name:?} not found")))?;
        let uid = meta::uid(&pod.value);
        if bound["uid"]
            .as_str()
            .is_some_and(|wanted| !wanted.is_empty() && wanted != uid)
        {
            return Err(Status::new(
                409,
                "Conflict",
                format!(
                    "Operation cannot be fulfilled on pods {name:?}: the UID in the bound object reference ({}) does \
                     not match the UID in record. The object might have been deleted and then recreated",
                    bound["uid"].as_str().unwrap_or_default()
                ),
            ));
        }
        about["pod"] = json!({"name": name, "uid": uid});
    }
    let now = jiff::Timestamp::now();
    let seconds = seconds.min(366 * 24 * 3600);
    let ends = now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now);
    let claims = tokens::Claims {
        aud: audiences.clone(),
        exp: ends.as_second(),
        iat: now.as_second(),
        iss: tokens::ISSUER.into(),
        nbf: now.as_second(),
        sub: format!("system:serviceaccount:{}:{}", call.path.namespace, call.path.name),
        jti: uuid::Uuid::new_v4().to_string(),
        kubernetes: about,
    };
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["kind"] = "TokenRequest".into();
    request["metadata"] =
        json!({"name": call.path.name, "namespace": call.path.namespace, "creationTimestamp": meta::now()});
    request["spec"]["audiences"] = audiences.into();
    request["spec"]["expirationSeconds"] = seconds.into();
    request["status"] = json!({
        "token": call.server.authenticator.sign(&claims), "expirationTimestamp": meta::format_time(ends),
    });
    Ok(call.answer_value(201, &request))
}
