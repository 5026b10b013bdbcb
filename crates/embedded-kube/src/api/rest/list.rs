//! Lists: from one snapshot, filtered, in pages if asked.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Call, present};
use crate::api::body::Body;
use crate::api::errors::{Result, Status};
use crate::api::selector::Selector;
use crate::api::store::Object;

/// Where the next page starts. Opaque to clients.
#[derive(Serialize, Deserialize)]
struct Continue {
    #[serde(rename = "rv")]
    revision: u64,
    after: String,
}

pub(crate) fn selector(call: &Call) -> Result<Selector> {
    Selector::parse(
        &call.resource,
        call.query.get("labelSelector"),
        call.query.get("fieldSelector"),
    )
}

/// A resource version from the query.
pub(crate) fn revision(call: &Call) -> Result<Option<u64>> {
    match call.query.get("resourceVersion") {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            Status::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing \
                 {text:?}: invalid syntax"
            ))
        }),
    }
}

pub(crate) fn list(call: &Call) -> Result<Response<Body>> {
    let selector = selector(call)?;
    let limit = call.query.number("limit")?.filter(|limit| *limit > 0);
    let wanted = revision(call)?;
    let mut snapshot = call.server.store.snapshot();
    if let Some(wanted) = wanted
        && wanted > snapshot.revision
    {
        let mut status = Status::new(
            504,
            "Timeout",
            format!(
                "Timeout: Too large resource version: {wanted}, current: {}",
                snapshot.revision
            ),
        );
        status.details = Some(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }));
        return Err(status);
    }
    if call.query.get("resourceVersionMatch") == Some("Exact") {
        let wanted = wanted.filter(|w| *w > 0).ok_or_else(|| {
            Status::bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided and not 0")
        })?;
        snapshot = call
            .server
            .store
            .page(wanted)
            .ok_or_else(|| Status::expired("The resourceVersion for the provided list is too old."))?;
    }
    let mut after = None;
    if let Some(token) = call.query.get("continue") {
        let page: Continue = URL_SAFE_NO_PAD
            .decode(token)
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .ok_or_else(|| {
                Status::bad_request(
                    "invalid continue token: continue key is not valid: it is not one this server gave out",
                )
            })?;
        snapshot = call.server.store.page(page.revision).ok_or_else(|| {
            Status::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter.",
            )
        })?;
        after = Some(page.after);
    }
    let mut items: Vec<&Object> = Vec::new();
    let mut last = None;
    let mut more = 0u64;
    for (key, object) in snapshot.list(&call.resource.storage, call.namespace(), after.as_deref()) {
        if !selector.matches(&object.value) {
            continue;
        }
        if limit.is_some_and(|limit| items.len() as u64 >= limit) {
            more += 1;
        } else {
            items.push(object);
            last = Some(key.as_str());
        }
    }
    let mut metadata = json!({"resourceVersion": snapshot.revision.to_string()});
    if let Some(last) = last.filter(|_| more > 0) {
        let token = Continue {
            revision: snapshot.revision,
            after: last.to_owned(),
        };
        metadata["continue"] = URL_SAFE_NO_PAD.encode(json!(token).to_string()).into();
        // As in Kubernetes: not sent when a selector was given.
        if selector.is_empty() {
            metadata["remainingItemCount"] = more.into();
        }
        call.server.store.keep_page(snapshot.clone());
    }
    Ok(call.respond(200, present::list(call, &metadata, &items)))
}
