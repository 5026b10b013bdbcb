//! OpenAPI documents, built on request and kept until the served resources change.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use http::{HeaderValue, Response, header};

use super::body::{Body, full};
use super::discovery::MINOR;
use super::errors::{Result, Status};
use super::resources::Registry;
use crate::schema::openapi::{self, Served};

/// The documents built so far, by path.
#[derive(Debug)]
pub(crate) struct Documents {
    made: Mutex<HashMap<String, Bytes>>,
    /// The ETag of this state.
    state: String,
}

impl Default for Documents {
    fn default() -> Self {
        Self {
            made: Mutex::default(),
            state: uuid::Uuid::new_v4().to_string(),
        }
    }
}

fn served(registry: &Registry) -> Vec<Served<'_>> {
    registry
        .resources()
        .map(|resource| Served {
            group: &resource.group,
            version: &resource.version,
            kind: &resource.kind,
            plural: &resource.plural,
            namespaced: resource.namespaced,
            schema: resource
                .custom()
                .and_then(|custom| Some(&custom.versions.get(&resource.version)?.open_api)),
        })
        .collect()
}

/// Serves `/openapi/...`; `parts` is the rest of the path.
pub(crate) fn serve(registry: &Registry, parts: &[&str]) -> Result<Response<Body>> {
    let key = parts.join("/");
    let version = format!("v1.{MINOR}.0");
    let documents = &registry.documents;
    let known = documents
        .made
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .get(&key)
        .cloned();
    let bytes = match known {
        Some(bytes) => bytes,
        None => {
            let served = served(registry);
            let made = match parts {
                ["v2"] => Some(openapi::v2_json(&served, &version)),
                ["v3"] => Some(openapi::v3_index(&served, &documents.state).to_string().into_bytes()),
                ["v3", "api", v] => openapi::v3(&served, "", v, &version),
                ["v3", "apis", group, v] => openapi::v3(&served, group, v, &version),
                _ => None,
            };
            let bytes = Bytes::from(made.ok_or_else(Status::not_served)?);
            documents
                .made
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .insert(key, bytes.clone());
            bytes
        }
    };
    let mut response = Response::new(full(bytes));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
