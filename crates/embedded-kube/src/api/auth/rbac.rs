//! RBAC decisions: roles and bindings, read from one snapshot.

use serde_json::Value;

use super::User;
use crate::api::store::{Key, Snapshot};

const GROUP: &str = "rbac.authorization.k8s.io";

/// The rules of a role that a binding names.
pub(crate) fn role_rules<'a>(snapshot: &'a Snapshot, kind: &str, namespace: &str, name: &str) -> Option<&'a Value> {
    let key = match kind {
        "ClusterRole" => Key::new(&format!("clusterroles.{GROUP}"), "", name),
        _ => Key::new(&format!("roles.{GROUP}"), namespace, name),
    };
    snapshot.get(&key).map(|role| &role.value["rules"])
}

/// All rules of a user: cluster-wide ones, and those in a namespace if one is given.
pub(crate) fn rules<'a>(snapshot: &'a Snapshot, user: &User, namespace: &str) -> Vec<&'a Value> {
    let everywhere = snapshot.values(&format!("clusterrolebindings.{GROUP}"), "");
    let here = match namespace {
        "" => Vec::new(),
        namespace => snapshot.values(&format!("rolebindings.{GROUP}"), namespace),
    };
    let mut found = Vec::new();
    for (binding, namespace) in everywhere
        .into_iter()
        .map(|b| (b, ""))
        .chain(here.into_iter().map(|b| (b, namespace)))
    {
        let subjects = binding["subjects"].as_array();
        if !subjects.is_some_and(|all| all.iter().any(|subject| is_subject(subject, user, namespace))) {
            continue;
        }
        let role = &binding["roleRef"];
        let text = |field: &str| role[field].as_str().unwrap_or_default();
        let rules = role_rules(snapshot, text("kind"), namespace, text("name"));
        found.extend(rules.and_then(Value::as_array).into_iter().flatten());
    }
    found
}

fn is_subject(subject: &Value, user: &User, namespace: &str) -> bool {
    let text = |field: &str| subject[field].as_str().unwrap_or_default();
    match text("kind") {
        "User" => text("name") == user.name,
        "Group" => user.groups.iter().any(|g| g == text("name")),
        "ServiceAccount" => {
            let namespace = Some(text("namespace")).filter(|n| !n.is_empty()).unwrap_or(namespace);
            user.name == format!("system:serviceaccount:{namespace}:{}", text("name"))
        }
        _ => false,
    }
}

fn has(rule: &Value, field: &str, wanted: &str) -> bool {
    rule[field]
        .as_array()
        .is_some_and(|list| list.iter().any(|item| item == wanted || item == "*"))
}

fn rule_allows(rule: &Value, verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
    let combined = if subresource.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}/{subresource}")
    };
    let resources = rule["resources"].as_array().is_some_and(|list| {
        list.iter().filter_map(Value::as_str).any(|r| {
            r == "*" || r == combined || (!subresource.is_empty() && r.strip_prefix("*/") == Some(subresource))
        })
    });
    let names = rule["resourceNames"].as_array().filter(|list| !list.is_empty());
    has(rule, "verbs", verb)
        && has(rule, "apiGroups", group)
        && resources
        && names.is_none_or(|list| list.iter().any(|n| n == name))
}

/// Whether RBAC allows a user an action on a resource.
#[allow(clippy::too_many_arguments)] // the attributes of one request, as Kubernetes names them
pub(crate) fn may(
    snapshot: &Snapshot,
    user: &User,
    verb: &str,
    group: &str,
    resource: &str,
    subresource: &str,
    namespace: &str,
    name: &str,
) -> bool {
    user.is_master()
        || rules(snapshot, user, namespace)
            .into_iter()
            .any(|rule| rule_allows(rule, verb, group, resource, subresource, name))
}

/// Whether RBAC allows a user a path that is no resource.
pub(crate) fn may_use_path(snapshot: &Snapshot, user: &User, verb: &str, path: &str) -> bool {
    user.is_master()
        || rules(snapshot, user, "").into_iter().any(|rule| {
            has(rule, "verbs", verb)
                && rule["nonResourceURLs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .any(|url| {
                        url == "*"
                            || url == path
                            || url.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
                    })
        })
}

/// The parts of these rules that a user does not have.
pub(crate) fn not_covered(snapshot: &Snapshot, user: &User, namespace: &str, wanted: &Value) -> Vec<Value> {
    let held = rules(snapshot, user, namespace);
    let list = |rule: &Value, field: &str| -> Vec<String> {
        rule[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let mut missing = Vec::new();
    for rule in wanted.as_array().into_iter().flatten() {
        let names = match list(rule, "resourceNames") {
            names if names.is_empty() => vec![String::new()],
            names => names,
        };
        let verbs = list(rule, "verbs");
        let resources = list(rule, "resources");
        let covered = verbs.iter().all(|verb| {
            list(rule, "apiGroups").iter().all(|group| {
                resources.iter().all(|resource| {
                    let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
                    names
                        .iter()
                        .all(|name| held.iter().any(|r| rule_allows(r, verb, group, resource, sub, name)))
                })
            }) && list(rule, "nonResourceURLs")
                .iter()
                .all(|url| may_use_path(snapshot, user, verb, url))
        });
        if !covered {
            missing.push(rule.clone());
        }
    }
    missing
}

/// A rule as Kubernetes prints it in error messages.
pub(crate) fn describe_rule(rule: &Value) -> String {
    let mut parts = Vec::new();
    for (field, title) in [
        ("apiGroups", "APIGroups"),
        ("resources", "Resources"),
        ("resourceNames", "ResourceNames"),
        ("nonResourceURLs", "NonResourceURLs"),
        ("verbs", "Verbs"),
    ] {
        if let Some(list) = rule[field].as_array().filter(|list| !list.is_empty()) {
            let items: Vec<String> = list
                .iter()
                .map(|i| format!("{:?}", i.as_str().unwrap_or_default()))
                .collect();
            parts.push(format!("{title}:[{}]", items.join(" ")));
        }
    }
    format!("{{{}}}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_allow_what_they_say() {
        let rule = json!({"apiGroups": ["", "apps"], "resources": ["pods", "pods/log", "*/scale"], "verbs": ["get", "list"],
            "resourceNames": []});
        let allows = |verb, group, resource, sub, name| rule_allows(&rule, verb, group, resource, sub, name);
        assert!(allows("get", "", "pods", "", "x"));
        assert!(allows("get", "", "pods", "log", "x"));
        assert!(allows("get", "apps", "statefulsets", "scale", "x"));
        assert!(!allows("get", "", "pods", "exec", "x"));
        assert!(!allows("delete", "", "pods", "", "x"));
        assert!(!allows("get", "batch", "pods", "", "x"));
        let named = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": ["mine"]});
        assert!(rule_allows(&named, "patch", "g", "r", "s", "mine"));
        assert!(!rule_allows(&named, "patch", "g", "r", "s", "other"));
        assert!(!rule_allows(&named, "list", "g", "r", "", ""), "a list names no object");
        assert_eq!(
            describe_rule(&rule),
            r#"{APIGroups:["" "apps"], Resources:["pods" "pods/log" "*/scale"], Verbs:["get" "list"]}"#
        );
    }
}
