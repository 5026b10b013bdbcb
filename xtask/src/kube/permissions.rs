//! Checks that the operator has exactly the permissions that it uses. The API server's audit log contains the requests
//! of the operator's service account; the shipped manifests contain its permissions. A request that was denied and
//! never granted shows a missing permission. After the whole suite, a permission that was never used is superfluous.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::layout::Run;

/// An audit policy that logs every request of the operator, without bodies, and no others.
pub(crate) const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ['system:serviceaccount:stateward-system:stateward']
- level: None
";

/// The path of the audit log.
pub(crate) fn audit_log(run: &Run) -> PathBuf {
    run.log("audit")
}

/// A verb on a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Permission {
    group: String,
    /// The resource with its subresource, as in `pods/eviction`.
    resource: String,
    verb: String,
}

impl fmt::Display for Permission {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(text, "{} {}{dot}{}", self.verb, self.resource, self.group)
    }
}

/// Whether only admission checks this permission, so that the log never shows it. The plugin
/// `OwnerReferencesPermissionEnforcement` is enabled here. It rejects an object with `blockOwnerDeletion` from a client
/// that may not update the finalizers of its owner, so without the permission no scenario would pass.
fn is_used_by_admission(permission: &Permission) -> bool {
    permission.verb == "update" && permission.resource.ends_with("/finalizers")
}

/// The requests since some moment.
#[derive(Default)]
struct Asked {
    granted: BTreeSet<Permission>,
    /// What a pod was denied on every attempt. A pod that was granted the request before or after has the permission:
    /// it asked while its roles were being removed, or before the API server had read them.
    refused: BTreeSet<Permission>,
}

/// The length of the log, to mark where a later check begins.
pub(crate) fn mark(run: &Run) -> u64 {
    std::fs::metadata(audit_log(run)).map_or(0, |file| file.len())
}

/// Compares the requests since `mark` with the shipped manifests. Unused permissions count only when `whole` is set,
/// which means that every scenario ran.
pub(crate) fn check(run: &Run, mark: u64, manifests: &str, whole: bool) -> Result<()> {
    let asked = asked(&audit_log(run), mark)?;
    let given = given(manifests)?;
    let list = |permissions: &mut dyn Iterator<Item = &Permission>| {
        permissions
            .map(|permission| format!("\n  {permission}"))
            .collect::<String>()
    };
    if asked.granted.is_empty() {
        bail!("the audit log shows no request of the operator");
    }
    if !asked.refused.is_empty() {
        bail!("the operator lacks permissions:{}", list(&mut asked.refused.iter()));
    }
    let unused = given.difference(&asked.granted);
    let unused = list(&mut unused.filter(|permission| !is_used_by_admission(permission)));
    if whole && !unused.is_empty() {
        bail!("the operator has permissions that it never used:{unused}");
    }
    let used = given.intersection(&asked.granted).count();
    println!("permissions: {used} used of {}, none missing", given.len());
    Ok(())
}

fn asked(log: &Path, mark: u64) -> Result<Asked> {
    let mut file = std::fs::File::open(log).with_context(|| format!("no audit log at {}", log.display()))?;
    file.seek(SeekFrom::Start(mark))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut asked = Asked::default();
    // By pod and namespace.
    let (mut granted, mut refused) = (BTreeSet::new(), BTreeSet::new());
    // The last line may be incomplete.
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let (object, word) = (&event["objectRef"], |value: &Value| {
            value.as_str().unwrap_or_default().to_owned()
        });
        if object.is_null() {
            continue; // discovery and similar requests, which everybody may make
        }
        let mut resource = word(&object["resource"]);
        if let Some(part) = object["subresource"].as_str() {
            resource = format!("{resource}/{part}");
        }
        let permission = Permission {
            group: word(&object["apiGroup"]),
            resource,
            verb: word(&event["verb"]),
        };
        // An apply that creates the object needs that permission, too; the log calls it a patch.
        if permission.verb == "patch" && event["responseStatus"]["code"] == 201 {
            asked.granted.insert(Permission {
                verb: "create".into(),
                ..permission.clone()
            });
        }
        let pod = word(&event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0]);
        let place = (pod, word(&object["namespace"]));
        // By the authorizer's reason: a namespace that is being deleted also causes a 403.
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            refused.insert((place, permission));
        } else {
            asked.granted.insert(permission.clone());
            granted.insert((place, permission));
        }
    }
    let missing = refused.difference(&granted);
    asked.refused = missing.map(|(_, permission)| permission.clone()).collect();
    Ok(asked)
}

/// Every permission in the roles of these manifests.
fn given(manifests: &str) -> Result<BTreeSet<Permission>> {
    let mut permissions = BTreeSet::new();
    for document in serde_yaml_ng::Deserializer::from_str(manifests) {
        let object = Value::deserialize(document)?;
        let words = |value: &Value| -> Vec<String> {
            let words = value.as_array().into_iter().flatten();
            words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    for verb in words(&rule["verbs"]) {
                        if [&group, &resource, &verb].iter().any(|word| word.contains('*')) {
                            bail!("a role of the operator has a wildcard: {rule}");
                        }
                        permissions.insert(Permission {
                            group: group.clone(),
                            resource: resource.clone(),
                            verb,
                        });
                    }
                }
            }
        }
    }
    Ok(permissions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(verb: &str, resource: &str, decision: &str) -> String {
        serde_json::json!({
            "verb": verb, "objectRef": {"resource": resource, "apiVersion": "v1"},
            "annotations": {"authorization.k8s.io/decision": decision},
        })
        .to_string()
    }

    #[test]
    fn requests_are_read_from_the_mark_on() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let first = event("get", "nodes", "allow") + "\n";
        let rest = [
            event("list", "pods", "allow"),
            event("get", "secrets", "forbid"),
            "{half".into(),
        ]
        .join("\n");
        std::fs::write(log.path(), format!("{first}{rest}")).unwrap();
        let asked = asked(log.path(), first.len() as u64).unwrap();
        assert_eq!(
            asked.granted.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["list pods"]
        );
        assert_eq!(
            asked.refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["get secrets"]
        );
    }

    #[test]
    fn a_right_is_missing_where_it_was_never_granted() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let asks = |pod: &str, namespace: &str, decision: &str| {
            let mut event: Value = serde_json::from_str(&event("get", "leases", decision)).unwrap();
            event["user"]["extra"]["authentication.kubernetes.io/pod-name"] = serde_json::json!([pod]);
            event["objectRef"]["namespace"] = namespace.into();
            event.to_string()
        };
        let missing = |events: &[String]| {
            std::fs::write(log.path(), events.join("\n")).unwrap();
            asked(log.path(), 0).unwrap().refused.len()
        };
        let allowed = asks("a", "home", "allow");
        assert_eq!(
            missing(&[allowed.clone(), asks("a", "home", "forbid")]),
            0,
            "its roles were removed"
        );
        assert_eq!(missing(&[allowed.clone(), asks("a", "elsewhere", "forbid")]), 1);
        assert_eq!(
            missing(&[allowed, asks("b", "home", "forbid")]),
            1,
            "another pod has other roles"
        );
    }

    #[test]
    fn finalizers_are_asked_for_by_admission_alone() {
        let used = |verb: &str, resource: &str| {
            is_used_by_admission(&Permission {
                group: "g".into(),
                resource: resource.into(),
                verb: verb.into(),
            })
        };
        assert!(used("update", "etcdclusters/finalizers"));
        assert!(!used("patch", "etcdclusters/finalizers") && !used("update", "etcdclusters"));
    }

    #[test]
    fn rules_are_expanded_and_wildcards_rejected() {
        let role = |verbs: &str| {
            format!("kind: Role\nrules:\n- {{apiGroups: ['', apps], resources: [pods], verbs: [{verbs}]}}\n")
        };
        let permissions = given(&format!("---\nkind: Namespace\n---\n{}", role("get, list"))).unwrap();
        let permissions: Vec<_> = permissions.iter().map(ToString::to_string).collect();
        assert_eq!(
            permissions,
            ["get pods", "list pods", "get pods.apps", "list pods.apps"]
        );
        assert!(given(&role("'*'")).is_err());
    }
}
