//! Deleting: preconditions, propagation, finalizers and grace periods.

use std::sync::Arc;

use http::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::update::modify;
use super::{Call, accept, list, present};
use crate::api::body::Body;
use crate::api::errors::{Result, Status};
use crate::api::meta;
use crate::api::store::{Change, Expect, Object, Write, WriteError};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) propagation_policy: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) preconditions: Preconditions,
    pub(crate) dry_run: Vec<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

impl DeleteOptions {
    fn read(call: &Call) -> Result<Self> {
        let mut options = if call.body.is_empty() {
            Self::default()
        } else {
            let value = accept::parse(&call.content_type, &call.body)?;
            serde_json::from_value(value)
                .map_err(|e| Status::bad_request(format!("couldn't read the body as DeleteOptions: {e}")))?
        };
        if options.grace_period_seconds.is_none() {
            options.grace_period_seconds =
                match call.query.get("gracePeriodSeconds") {
                    Some(text) => Some(text.parse().map_err(|_| {
                        Status::bad_request(format!("invalid gracePeriodSeconds {text:?}: not a number"))
                    })?),
                    None => None,
                };
        }
        if options.propagation_policy.is_none() {
            options.propagation_policy = call.query.get("propagationPolicy").map(str::to_owned);
        }
        match (options.propagation_policy.as_deref(), options.orphan_dependents) {
            (Some(_), Some(_)) => {
                return Err(invalid_options(
                    "propagationPolicy: Invalid value: orphanDependents and propagationPolicy cannot be both set",
                ));
            }
            (Some("Orphan" | "Background" | "Foreground") | None, _) => {}
            (Some(other), _) => {
                return Err(invalid_options(&format!(
                    "propagationPolicy: Unsupported value: {other:?}: supported values: \"Foreground\", \
                     \"Background\", \"Orphan\", \"nil\""
                )));
            }
        }
        if options.grace_period_seconds.is_some_and(|g| g < 0) {
            options.grace_period_seconds = Some(1);
        }
        Ok(options)
    }

    fn is_dry_run(&self, call: &Call) -> Result<bool> {
        match self.dry_run.as_slice() {
            [] => call.dry_run(),
            [all] if all == "All" => Ok(true),
            other => Err(invalid_options(&format!(
                "dryRun: Unsupported value: {}: supported values: \"All\"",
                json!(other)
            ))),
        }
    }

    /// The finalizers an object has once its deletion has begun.
    fn finalizers(&self, object: &Value) -> Vec<String> {
        let mut list = meta::finalizers(object);
        let policy = match (self.propagation_policy.as_deref(), self.orphan_dependents) {
            (Some(policy), _) => Some(policy),
            (None, Some(true)) => Some("Orphan"),
            (None, Some(false)) => Some("Background"),
            (None, None) => None,
        };
        // Without a policy the object's finalizers decide; without those, dependents are deleted in the background.
        let wanted = match policy {
            Some("Orphan") => Some(ORPHAN),
            Some("Foreground") => Some(FOREGROUND),
            Some(_) => None,
            None => return list,
        };
        list.retain(|f| f != ORPHAN && f != FOREGROUND);
        list.extend(wanted.map(str::to_owned));
        list
    }
}

fn invalid_options(text: &str) -> Status {
    Status::new(
        422,
        "Invalid",
        format!("DeleteOptions.meta.k8s.io \"\" is invalid: {text}"),
    )
}

/// The grace period of the object; only pods have one.
fn grace(call: &Call, object: &Value, options: &DeleteOptions) -> i64 {
    if !call.resource.is("", "pods") {
        return 0;
    }
    let bound = object["spec"]["nodeName"].as_str().is_some_and(|n| !n.is_empty());
    let ended = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if !bound || ended {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    options.grace_period_seconds.unwrap_or(own)
}

pub(crate) async fn delete(call: &Call) -> Result<Response<Body>> {
    let options = DeleteOptions::read(call)?;
    let (object, gone) = delete_one(call, &call.path.name, &options).await?;
    // Kubernetes returns the object for some kinds and a Status for the others.
    let returns_object = !gone
        || [
            "pods",
            "services",
            "persistentvolumeclaims",
            "persistentvolumes",
            "namespaces",
            "serviceaccounts",
        ]
        .contains(&call.resource.plural.as_str())
            && call.resource.group.is_empty();
    if returns_object {
        return Ok(call.answer(200, &object));
    }
    let mut details = json!({"name": call.path.name});
    if !call.resource.group.is_empty() {
        details["group"] = call.resource.group.clone().into();
    }
    details["kind"] = call.resource.plural.clone().into();
    details["uid"] = meta::uid(&object.value).into();
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Ok(call.answer_value(200, &status))
}

/// Deletes, or begins to. Returns whether the object is deleted.
pub(crate) async fn delete_one(call: &Call, name: &str, options: &DeleteOptions) -> Result<(Arc<Object>, bool)> {
    let dry_run = options.is_dry_run(call)?;
    for _ in 0..32 {
        let current = call.current(name)?;
        check_preconditions(call, &current, &options.preconditions)?;
        crate::api::admission::on_delete(call, &current.value)?;
        let finalizers = options.finalizers(&current.value);
        let grace = grace(call, &current.value, options);
        let namespace = call.resource.is("", "namespaces")
            && current.value["spec"]["finalizers"]
                .as_array()
                .is_some_and(|f| !f.is_empty());
        if finalizers.is_empty() && grace == 0 && !namespace {
            if dry_run {
                return Ok((current, true));
            }
            let write = Write {
                key: call.key(name),
                expect: Expect::Revision(current.revision),
                change: Change::Delete,
            };
            match call.server.store.write(write).await {
                Ok(gone) => {
                    call.server.after_write(&call.resource, &gone.value).await;
                    return Ok((gone, true));
                }
                Err(WriteError::Stale) => continue,
                Err(WriteError::Missing) => return Err(Status::not_found(&call.resource, name)),
                Err(e) => return Err(Status::internal(e)),
            }
        }
        let begun = modify(call, name, |now| {
            check_preconditions(call, now, &options.preconditions)?;
            Ok(begin(&now.value, options.finalizers(&now.value), grace, namespace))
        })
        .await?;
        return Ok((begun, false));
    }
    Err(Status::stale(&call.resource, name))
}

/// Marks an object as being deleted. A second deletion can only shorten the grace period.
fn begin(current: &Value, finalizers: Vec<String>, grace: i64, namespace: bool) -> Value {
    let mut next = current.clone();
    meta::set_finalizers(&mut next, finalizers);
    if namespace {
        next["status"]["phase"] = "Terminating".into();
    }
    let now = jiff::Timestamp::now();
    let ends = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
    if meta::is_deleting(current) {
        let left = current["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if grace < left {
            let metadata = meta::metadata_mut(&mut next);
            metadata.insert("deletionTimestamp".into(), meta::format_time(ends).into());
            metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
        }
        return next;
    }
    let metadata = meta::metadata_mut(&mut next);
    metadata.insert("deletionTimestamp".into(), meta::format_time(ends).into());
    // Namespaces have no grace period; everything else does, zero where it waits for finalizers only.
    if !namespace {
        metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
    }
    if metadata.contains_key("generation") {
        meta::bump_generation(&mut next);
    }
    next
}

fn check_preconditions(call: &Call, object: &Object, preconditions: &Preconditions) -> Result<()> {
    let conflict = |why: String| Status::precondition(&call.resource, meta::name(&object.value), why);
    let found = meta::uid(&object.value);
    if let Some(uid) = preconditions.uid.as_deref().filter(|wanted| *wanted != found) {
        return Err(conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). The object might have been \
             deleted and then recreated"
        )));
    }
    let found = object.revision.to_string();
    if let Some(version) = preconditions
        .resource_version
        .as_deref()
        .filter(|wanted| *wanted != found)
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record \
             ({found}). The object might have been modified"
        )));
    }
    Ok(())
}

pub(crate) async fn delete_collection(call: &Call) -> Result<Response<Body>> {
    if call.resource.namespaced && call.path.namespace.is_empty() {
        return Err(Status::method_not_allowed());
    }
    let options = DeleteOptions::read(call)?;
    let selector = list::selector(call)?;
    let snapshot = call.server.store.snapshot();
    let names: Vec<String> = snapshot
        .list(&call.resource.storage, call.namespace(), None)
        .filter(|(_, object)| selector.matches(&object.value))
        .map(|(_, object)| meta::name(&object.value).to_owned())
        .collect();
    let mut deleted = Vec::new();
    for name in names {
        match delete_one(call, &name, &options).await {
            Ok((object, _)) => deleted.push(object),
            Err(e) if e.code == 404 => {}
            Err(e) => return Err(e),
        }
    }
    let items: Vec<&Object> = deleted.iter().map(|o| o.as_ref()).collect();
    let metadata = json!({"resourceVersion": call.server.store.snapshot().revision.to_string()});
    Ok(call.respond(200, present::list(call, &metadata, &items)))
}
