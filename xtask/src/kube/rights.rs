//! Does the operator have exactly the rights it uses? The API server's audit log tells what the operator's service account
//! asked for; the shipped manifests tell what it may do. What a pod of the operator was refused and never granted is a right
//! that is missing, and after the whole suite a right that was never used is one too many.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::layout::Run;

/// Every request of the operator, without bodies, and of nobody else.
pub(crate) const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ['system:serviceaccount:stateward-system:stateward']
- level: None
";

/// Where the API server writes it.
pub(crate) fn audit_log(run: &Run) -> PathBuf {
    run.log("audit")
}

/// One thing that can be done to one kind of object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    /// With its subresource, as in `pods/eviction`.
    resource: String,
    verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(text, "{} {}{dot}{}", self.verb, self.resource, self.group)
    }
}

/// Whether only admission asks for this right, so that the log never shows it. The plugin `OwnerReferencesPermissionEnforcement`
/// is on here and refuses an object with `blockOwnerDeletion` to whoever may not update the finalizers of its owner: without the
/// right no scenario would pass.
fn is_used_by_admission(right: &Right) -> bool {
    right.verb == "update" && right.resource.ends_with("/finalizers")
}

/// What was asked since some moment.
#[derive(Default)]
struct Asked {
    granted: BTreeSet<Right>,
    /// What some pod was refused wherever it asked. One that was granted it before or after has the right: it asked while its
    /// roles were being removed, or while the API server had not read them yet.
    refused: BTreeSet<Right>,
}

/// The log's length: where a later look begins.
pub(crate) fn mark(run: &Run) -> u64 {
    std::fs::metadata(audit_log(run)).map_or(0, |file| file.len())
}

/// Compares what was asked since `mark` with the shipped manifests. Unused rights count only when `whole`: when every scenario
/// ran.
pub(crate) fn check(run: &Run, mark: u64, manifests: &str, whole: bool) -> Result<()> {
    let asked = asked(&audit_log(run), mark)?;
    let given = given(manifests)?;
    let list =
        |rights: &mut dyn Iterator<Item = &Right>| rights.map(|right| format!("\n  {right}")).collect::<String>();
    if asked.granted.is_empty() {
        bail!("the audit log shows no request of the operator");
    }
    if !asked.refused.is_empty() {
        bail!("the operator lacks rights:{}", list(&mut asked.refused.iter()));
    }
    let unused = given.difference(&asked.granted);
    let unused = list(&mut unused.filter(|right| !is_used_by_admission(right)));
    if whole && !unused.is_empty() {
        bail!("the operator has rights that it never used:{unused}");
    }
    let used = given.intersection(&asked.granted).count();
    println!("rights: {used} used of {}, none missing", given.len());
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
    // The last line may be half written.
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let (object, word) = (&event["objectRef"], |value: &Value| {
            value.as_str().unwrap_or_default().to_owned()
        });
        if object.is_null() {
            continue; // discovery and the like, which everybody may ask
        }
        let mut resource = word(&object["resource"]);
        if let Some(part) = object["subresource"].as_str() {
            resource = format!("{resource}/{part}");
        }
        let right = Right {
            group: word(&object["apiGroup"]),
            resource,
            verb: word(&event["verb"]),
        };
        // An apply that makes the object needs that right, too; the log calls it a patch.
        if right.verb == "patch" && event["responseStatus"]["code"] == 201 {
            asked.granted.insert(Right {
                verb: "create".into(),
                ..right.clone()
            });
        }
        let pod = word(&event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0]);
        let place = (pod, word(&object["namespace"]));
        // By the authorizer's word: a 403 also comes of a namespace that is being deleted.
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            refused.insert((place, right));
        } else {
            asked.granted.insert(right.clone());
            granted.insert((place, right));
        }
    }
    let missing = refused.difference(&granted);
    asked.refused = missing.map(|(_, right)| right.clone()).collect();
    Ok(asked)
}

/// Every right in the roles of these manifests.
fn given(manifests: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
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
                        rights.insert(Right {
                            group: group.clone(),
                            resource: resource.clone(),
                            verb,
                        });
                    }
                }
            }
        }
    }
    Ok(rights)
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
            "another pod's roles are others"
        );
    }

    #[test]
    fn finalizers_are_asked_for_by_admission_alone() {
        let used = |verb: &str, resource: &str| {
            is_used_by_admission(&Right {
                group: "g".into(),
                resource: resource.into(),
                verb: verb.into(),
            })
        };
        assert!(used("update", "etcdclusters/finalizers"));
        assert!(!used("patch", "etcdclusters/finalizers") && !used("update", "etcdclusters"));
    }

    #[test]
    fn rights_are_spread_out_and_wildcards_refused() {
        let role = |verbs: &str| {
            format!("kind: Role\nrules:\n- {{apiGroups: ['', apps], resources: [pods], verbs: [{verbs}]}}\n")
        };
        let rights = given(&format!("---\nkind: Namespace\n---\n{}", role("get, list"))).unwrap();
        let rights: Vec<_> = rights.iter().map(ToString::to_string).collect();
        assert_eq!(rights, ["get pods", "list pods", "get pods.apps", "list pods.apps"]);
        assert!(given(&role("'*'")).is_err());
    }
}
