//! Errors as Kubernetes writes them: a `Status` object with code, reason, message and details.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::body::{Body, full};
use super::resources::Resource;
pub(crate) use crate::schema::error::FieldError;
use crate::schema::error::aggregate;

/// A failed request.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Option<Value>,
}

/// What every step of a request returns.
pub(crate) type Result<T, E = Status> = std::result::Result<T, E>;

impl Status {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
        }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.details = Some(details(&resource.group, &resource.plural, name));
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// The error for paths, groups and resources that are not served.
    pub(crate) fn not_served() -> Self {
        let mut status = Self::new(404, "NotFound", "the server could not find the requested resource");
        status.details = Some(json!({}));
        status
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", resource.qualified())).about(resource, name)
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            format!("{} {name:?} already exists", resource.qualified()),
        )
        .about(resource, name)
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: impl std::fmt::Display) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.qualified()
        );
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// A deletion whose precondition does not hold; Kubernetes names the kind here and not the resource.
    pub(crate) fn precondition(resource: &Resource, name: &str, why: impl std::fmt::Display) -> Self {
        let kind = resource.qualified_kind();
        let mut status = Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {kind} {name:?}: {why}"),
        );
        status.details = Some(details(&resource.group, &resource.kind, name));
        status
    }

    pub(crate) fn stale(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    pub(crate) fn forbidden(resource: &Resource, name: &str, why: impl std::fmt::Display) -> Self {
        let what = match name {
            "" => format!("{} is forbidden: {why}", resource.qualified()),
            name => format!("{} {name:?} is forbidden: {why}", resource.qualified()),
        };
        Self::new(403, "Forbidden", what).about(resource, name)
    }

    pub(crate) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        let list = aggregate(errors);
        let kind = resource.qualified_kind();
        let mut status = Self::new(422, "Invalid", format!("{kind} {name:?} is invalid: {list}"));
        let mut about = details(&resource.group, &resource.kind, name);
        about["causes"] = errors.iter().map(FieldError::cause).collect();
        status.details = Some(about);
        status
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// The `Status` object itself.
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason,
        });
        if let Some(details) = &self.details {
            value["details"] = details.clone();
        }
        value["code"] = self.code.into();
        value
    }

    pub(crate) fn to_response(&self) -> Response<Body> {
        let mut response = Response::new(full(Bytes::from(self.to_value().to_string())));
        *response.status_mut() = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

fn details(group: &str, kind: &str, name: &str) -> Value {
    let mut value = json!({});
    if !name.is_empty() {
        value["name"] = name.into();
    }
    if !group.is_empty() {
        value["group"] = group.into();
    }
    value["kind"] = kind.into();
    value
}
