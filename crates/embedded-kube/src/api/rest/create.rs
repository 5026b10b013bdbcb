//! Creating objects.

use std::sync::Arc;

use http::Response;
use serde_json::{Value, json};

use super::{Call, accept};
use crate::api::admission;
use crate::api::body::Body;
use crate::api::errors::{Result, Status};
use crate::api::managed;
use crate::api::meta;
use crate::api::rest::update::Part;
use crate::api::store::{Change, Expect, Key, Object, Write, WriteError};

/// How often a generated name that is taken is generated again.
const NAME_ATTEMPTS: usize = 8;

pub(crate) async fn create(call: &Call) -> Result<Response<Body>> {
    if !call.path.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    let sent = accept::object(call)?;
    let made = store_new(call, sent, managed::Change::Update).await?;
    Ok(call.answer(201, &made))
}

/// Stores a new object in the stored shape. Server-side apply and the server itself use it too.
pub(crate) async fn store_new(call: &Call, mut value: Value, change: managed::Change) -> Result<Arc<Object>> {
    accept::check_place(call, &mut value, None)?;
    let dry_run = call.dry_run()?;
    if !meta::metadata_mut(&mut value)
        .get("resourceVersion")
        .is_none_or(|v| v.is_null() || v == "" || v == "0")
    {
        return Err(Status::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let generate = value["metadata"]["generateName"]
        .as_str()
        .filter(|base| !base.is_empty())
        .map(str::to_owned);
    let generated = meta::name(&value).is_empty() && generate.is_some();
    for _ in 0..NAME_ATTEMPTS {
        let mut attempt = value.clone();
        if let Some(base) = generate.as_deref().filter(|_| generated) {
            meta::metadata_mut(&mut attempt).insert("name".into(), meta::generate_name(base).into());
        }
        init_metadata(call, &mut attempt);
        if call.resource.namespaced {
            check_namespace(call, meta::name(&attempt))?;
        }
        admission::on_create(call, &mut attempt).await?;
        let name = meta::name(&attempt).to_owned();
        call.reject(&name, &meta::validate(&call.resource, &attempt))?;
        call.reject(&name, &admission::validate(call, None, &attempt, Part::Main)?)?;
        managed::track(call, None, &mut attempt, change);
        let key = Key::new(&call.resource.storage, call.namespace(), &name);
        if dry_run {
            return match call.server.store.get(&key) {
                Some(_) => Err(Status::already_exists(&call.resource, &name)),
                None => Ok(Arc::new(Object::new(attempt, 0))),
            };
        }
        let write = Write {
            key,
            expect: Expect::Absent,
            change: Change::Put(attempt),
        };
        match call.server.store.write(write).await {
            Ok(made) => {
                call.server.after_write(&call.resource, &made.value).await;
                return Ok(made);
            }
            Err(WriteError::Exists) if generated => continue,
            Err(WriteError::Exists) => return Err(Status::already_exists(&call.resource, &name)),
            Err(e) => return Err(Status::internal(e)),
        }
    }
    Err(Status::already_exists(
        &call.resource,
        generate.as_deref().unwrap_or_default(),
    ))
}

/// The fields of the metadata that only the server sets.
fn init_metadata(call: &Call, value: &mut Value) {
    if call.resource.has_status() && call.resource.custom().is_some() {
        value.as_object_mut().map(|object| object.shift_remove("status"));
    }
    let metadata = meta::metadata_mut(value);
    for field in [
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        metadata.shift_remove(field);
    }
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), meta::now().into());
    if call.resource.generation || call.resource.custom().is_some() {
        metadata.insert("generation".into(), 1.into());
    }
}

/// New objects need a namespace that exists and is not being deleted.
fn check_namespace(call: &Call, name: &str) -> Result<()> {
    let namespaces = call
        .server
        .registry()
        .find("", "v1", "namespaces")
        .cloned()
        .ok_or_else(Status::not_served)?;
    let namespace = call.namespace();
    let found = call
        .server
        .store
        .get(&Key::new("namespaces", "", namespace))
        .ok_or_else(|| Status::not_found(&namespaces, namespace))?;
    if meta::is_deleting(&found.value) {
        let mut status = Status::forbidden(
            &call.resource,
            name,
            format!("unable to create new content in namespace {namespace} because it is being terminated"),
        );
        if let Some(details) = &mut status.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
        }
        return Err(status);
    }
    Ok(())
}
