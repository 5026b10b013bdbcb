//! The verbs on resources. Each file is one verb or one helper that verbs share.

pub(crate) mod accept;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod patch;
pub(crate) mod present;
pub(crate) mod scale;
pub(crate) mod update;
pub(crate) mod watch;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};

use super::auth::User;
use super::body::Body;
use super::errors::{FieldError, Result, Status};
use super::request::{Query, ResourcePath};
use super::resources::Resource;
use super::server::Server;
use super::store::{Key, Object};
use present::Form;

/// How to handle unknown fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// One request on one resource, parsed, authenticated and authorized.
pub(crate) struct Call {
    pub(crate) server: Arc<Server>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) path: ResourcePath,
    pub(crate) query: Query,
    pub(crate) user: Arc<User>,
    pub(crate) form: Form,
    pub(crate) content_type: String,
    pub(crate) user_agent: String,
    pub(crate) body: Bytes,
    /// Kubernetes' name of the options of this verb, for error messages.
    pub(crate) options_kind: &'static str,
    /// The `Warning` headers of the response.
    pub(crate) warnings: Mutex<Vec<String>>,
}

impl Call {
    pub(crate) fn key(&self, name: &str) -> Key {
        Key::new(&self.resource.storage, self.namespace(), name)
    }

    /// The namespace of the objects of this call; empty for cluster-wide kinds.
    pub(crate) fn namespace(&self) -> &str {
        if self.resource.namespaced {
            &self.path.namespace
        } else {
            ""
        }
    }

    /// A query option with a wrong value.
    fn bad_option(&self, text: &str) -> Status {
        Status::new(422, "Invalid", format!("{} \"\" is invalid: {text}", self.options_kind))
    }

    pub(crate) fn dry_run(&self) -> Result<bool> {
        match self.query.all("dryRun") {
            [] => Ok(false),
            [all] if all == "All" => Ok(true),
            other => Err(self.bad_option(&format!(
                "dryRun: Unsupported value: {}: supported values: \"All\"",
                json!(other)
            ))),
        }
    }

    pub(crate) fn field_validation(&self) -> Result<FieldValidation> {
        match self.query.get("fieldValidation") {
            None | Some("Warn") => Ok(FieldValidation::Warn),
            Some("Ignore") => Ok(FieldValidation::Ignore),
            Some("Strict") => Ok(FieldValidation::Strict),
            Some(other) => Err(self.bad_option(&format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }

    /// The author of the change, for `metadata.managedFields`.
    pub(crate) fn field_manager(&self) -> String {
        match self.query.get("fieldManager") {
            Some(manager) => manager.to_owned(),
            None => self
                .user_agent
                .split('/')
                .next()
                .filter(|a| !a.is_empty())
                .unwrap_or("unknown")
                .to_owned(),
        }
    }

    pub(crate) fn warn(&self, text: impl Into<String>) {
        self.warnings
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(text.into());
    }

    pub(crate) fn current(&self, name: &str) -> Result<Arc<Object>> {
        self.server
            .store
            .get(&self.key(name))
            .ok_or_else(|| Status::not_found(&self.resource, name))
    }

    pub(crate) fn reject(&self, name: &str, errors: &[FieldError]) -> Result<()> {
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Status::invalid(&self.resource, name, errors))
        }
    }

    /// Returns one object in the form that the client requested.
    pub(crate) fn answer(&self, code: u16, object: &Object) -> Response<Body> {
        let bytes = present::object(self, object);
        self.respond(code, bytes)
    }

    pub(crate) fn answer_value(&self, code: u16, value: &Value) -> Response<Body> {
        self.respond(code, Bytes::from(value.to_string()))
    }

    pub(crate) fn respond(&self, code: u16, bytes: Bytes) -> Response<Body> {
        let pretty = self.query.flag("pretty");
        let bytes = match pretty.then(|| serde_json::from_slice::<Value>(&bytes)) {
            Some(Ok(value)) => serde_json::to_vec_pretty(&value).map(Bytes::from).unwrap_or(bytes),
            _ => bytes,
        };
        let mut response = super::server::json_response(code, bytes);
        let warnings = self.warnings.lock().unwrap_or_else(|e| e.into_inner());
        for warning in warnings.iter() {
            let quoted: String = warning
                .chars()
                .filter(|c| !c.is_control())
                .flat_map(|c| if c == '"' || c == '\\' { vec!['\\', c] } else { vec![c] })
                .collect();
            if let Ok(value) = http::HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                response.headers_mut().append(http::header::WARNING, value);
            }
        }
        response
    }
}

/// Serves one call.
pub(crate) async fn serve(call: Call, verb: &str) -> Result<Response<Body>> {
    let name = call.path.name.clone();
    if name.is_empty() && matches!(verb, "update" | "patch") {
        return Err(Status::method_not_allowed());
    }
    match (verb, call.path.subresource.as_str()) {
        ("get", "" | "status") => Ok(call.answer(200, call.current(&name)?.as_ref())),
        ("list", "") => list::list(&call),
        ("watch", "") => watch::watch(call),
        ("create", "") => create::create(&call).await,
        ("update", "" | "status" | "finalize") => update::replace(&call).await,
        ("patch", "" | "status") => patch::patch(&call).await,
        ("delete", "") => delete::delete(&call).await,
        ("deletecollection", "") => delete::delete_collection(&call).await,
        ("get" | "update" | "patch", "scale") => scale::scale(&call, verb).await,
        _ => Err(Status::method_not_allowed()),
    }
}
