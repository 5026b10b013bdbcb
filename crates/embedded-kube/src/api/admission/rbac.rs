//! Roles and bindings: no user grants permissions that they do not have.

use serde_json::{Value, json};

use super::{default, each, text};
use crate::api::auth::rbac;
use crate::api::errors::{FieldError, Result, Status};
use crate::api::meta;
use crate::api::rest::Call;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn defaults(binding: &mut Value) {
    if binding.get("roleRef").is_some_and(Value::is_object) && text(&binding["roleRef"], "apiGroup").is_empty() {
        binding["roleRef"]["apiGroup"] = GROUP.into();
    }
    if let Some(subjects) = binding.get_mut("subjects") {
        each(subjects, |subject| match text(subject, "kind") {
            "User" | "Group" => default(subject, "apiGroup", GROUP),
            _ => {}
        });
    }
}

pub(super) fn validate(old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let binding = new["kind"].as_str().is_some_and(|k| k.ends_with("Binding"));
    if binding {
        let role = &new["roleRef"];
        if text(role, "name").is_empty() {
            errors.push(FieldError::required("roleRef.name", ""));
        }
        let kinds: &[&str] = if new["kind"] == "RoleBinding" {
            &["ClusterRole", "Role"]
        } else {
            &["ClusterRole"]
        };
        if !kinds.contains(&text(role, "kind")) {
            let supported: Vec<String> = kinds.iter().map(|k| k.to_string()).collect();
            errors.push(FieldError::not_supported(
                "roleRef.kind",
                role["kind"].clone(),
                &supported,
            ));
        }
        for (i, subject) in new["subjects"].as_array().into_iter().flatten().enumerate() {
            if text(subject, "name").is_empty() {
                errors.push(FieldError::required(format!("subjects[{i}].name"), ""));
            }
            match text(subject, "kind") {
                "ServiceAccount" if text(subject, "namespace").is_empty() => {
                    errors.push(FieldError::required(format!("subjects[{i}].namespace"), ""));
                }
                "ServiceAccount" | "User" | "Group" => {}
                other => {
                    let supported = ["Group", "ServiceAccount", "User"].map(str::to_owned);
                    errors.push(FieldError::not_supported(
                        format!("subjects[{i}].kind"),
                        other,
                        &supported,
                    ));
                }
            }
        }
        if old.is_some_and(|old| old["roleRef"] != new["roleRef"]) {
            // Kubernetes prints its internal form of the field.
            let shown = json!({"APIGroup": role["apiGroup"], "Kind": role["kind"], "Name": role["name"]});
            errors.push(FieldError::invalid("roleRef", shown, "field is immutable"));
        }
        return errors;
    }
    for (i, rule) in new["rules"].as_array().into_iter().flatten().enumerate() {
        let list = |field: &str| rule[field].as_array().map(Vec::len).unwrap_or(0);
        if list("verbs") == 0 {
            errors.push(FieldError::required(format!("rules[{i}].verbs"), ""));
        }
        if list("nonResourceURLs") > 0 {
            continue;
        }
        if list("apiGroups") == 0 {
            let text = "resource rules must supply at least one api group";
            errors.push(FieldError::required(format!("rules[{i}].apiGroups"), text));
        }
        if list("resources") == 0 {
            let text = "resource rules must supply at least one resource";
            errors.push(FieldError::required(format!("rules[{i}].resources"), text));
        }
    }
    errors
}

/// Denies granting more than the granting user has.
pub(super) fn deny_escalation(call: &Call, object: &Value) -> Result<()> {
    let user = &call.user;
    if user.is_master() {
        return Ok(());
    }
    let snapshot = call.server.store.snapshot();
    let namespace = meta::namespace(object);
    let kind = text(object, "kind").to_owned();
    let (rules, verb) = match kind.as_str() {
        "Role" | "ClusterRole" => (object["rules"].clone(), "escalate"),
        _ => {
            let role = &object["roleRef"];
            let found = rbac::role_rules(&snapshot, text(role, "kind"), namespace, text(role, "name"));
            let Some(found) = found else {
                let why = format!(
                    "{} {:?} not found",
                    text(role, "kind").to_lowercase() + "s." + GROUP,
                    text(role, "name")
                );
                return Err(Status::new(404, "NotFound", why));
            };
            (found.clone(), "bind")
        }
    };
    if rbac::may(
        &snapshot,
        user,
        verb,
        GROUP,
        &call.resource.plural,
        "",
        namespace,
        meta::name(object),
    ) {
        return Ok(());
    }
    let missing = rbac::not_covered(&snapshot, user, namespace, &rules);
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = missing.iter().map(rbac::describe_rule).collect();
    let groups = json!(user.groups);
    Err(Status::forbidden(
        &call.resource,
        meta::name(object),
        format!(
            "user {:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            list.join("\n")
        ),
    ))
}
