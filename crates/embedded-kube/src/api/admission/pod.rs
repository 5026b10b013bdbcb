//! Pods: what admission adds (service account, tolerations, priority), the initial status, and immutable fields.

use serde_json::{Value, json};

use super::{default, each, pod_security, pod_spec, quota, text};
use crate::api::errors::{FieldError, Result, Status};
use crate::api::meta;
use crate::api::rest::Call;
use crate::api::store::Key;

pub(super) fn on_create(call: &Call, pod: &mut Value) -> Result<()> {
    service_account(call, pod)?;
    let spec = &mut pod["spec"];
    default(spec, "enableServiceLinks", true);
    default(spec, "preemptionPolicy", "PreemptLowerPriority");
    tolerations(spec);
    priority(call, pod)?;
    pod["status"] = json!({"phase": "Pending", "qosClass": qos_class(&pod["spec"])});
    pod_security::check(call, pod)
}

/// Every pod runs as a service account, and gets its token unless the spec disables it.
fn service_account(call: &Call, pod: &mut Value) -> Result<()> {
    let name = meta::name(pod).to_owned();
    let spec = &mut pod["spec"];
    if text(spec, "serviceAccountName").is_empty() {
        spec["serviceAccountName"] = "default".into();
    }
    let account_name = text(spec, "serviceAccountName").to_owned();
    spec["serviceAccount"] = account_name.clone().into();
    let namespace = call.namespace();
    let account = call
        .server
        .store
        .get(&Key::new("serviceaccounts", namespace, &account_name))
        .ok_or_else(|| {
            let why = format!(
                "error looking up service account {namespace}/{account_name}: serviceaccount {account_name:?} not found"
            );
            Status::forbidden(&call.resource, &name, why)
        })?;
    let wanted = spec["automountServiceAccountToken"].as_bool();
    if !wanted
        .or(account.value["automountServiceAccountToken"].as_bool())
        .unwrap_or(true)
    {
        return Ok(());
    }
    const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let volume = format!("kube-api-access-{}", meta::random_suffix(5));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        let Some(containers) = spec.get_mut(list) else { continue };
        each(containers, |container| {
            let taken = container["volumeMounts"]
                .as_array()
                .is_some_and(|mounts| mounts.iter().any(|m| m["mountPath"] == PATH));
            if !taken {
                default(container, "volumeMounts", json!([]));
                if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                    mounts.push(json!({"name": volume, "readOnly": true, "mountPath": PATH}));
                    mounted = true;
                }
            }
        });
    }
    if mounted {
        default(spec, "volumes", json!([]));
        if let Some(volumes) = spec["volumes"].as_array_mut() {
            volumes.push(json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]}},
            ]}}));
        }
    }
    Ok(())
}

/// A pod stays for five minutes on a node with problems, unless its spec differs.
fn tolerations(spec: &mut Value) {
    default(spec, "tolerations", json!([]));
    let Some(list) = spec["tolerations"].as_array_mut() else {
        return;
    };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = list.iter().any(|t| {
            let same_key = text(t, "key") == key || (text(t, "key").is_empty() && text(t, "operator") == "Exists");
            same_key && matches!(text(t, "effect"), "NoExecute" | "")
        });
        if !covered {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
}

fn priority(call: &Call, pod: &mut Value) -> Result<()> {
    let name = meta::name(pod).to_owned();
    let spec = &mut pod["spec"];
    let class = text(spec, "priorityClassName").to_owned();
    const CLASSES: &str = "priorityclasses.scheduling.k8s.io";
    let value = match class.as_str() {
        "" => {
            let snapshot = call.server.store.snapshot();
            let fallback = snapshot
                .list(CLASSES, "", None)
                .find(|(_, c)| c.value["globalDefault"] == true);
            if let Some((_, fallback)) = fallback {
                spec["priorityClassName"] = meta::name(&fallback.value).into();
                fallback.value["value"].clone()
            } else {
                0.into()
            }
        }
        class => match call.server.store.get(&Key::new(CLASSES, "", class)) {
            Some(found) => found.value["value"].clone(),
            None => {
                let why = format!("no PriorityClass with name {class} was found");
                return Err(Status::forbidden(&call.resource, &name, why));
            }
        },
    };
    spec["priority"] = value;
    Ok(())
}

/// Kubernetes' quality-of-service class, from requests and limits of CPU and memory.
fn qos_class(spec: &Value) -> &'static str {
    let lists = [&spec["containers"], &spec["initContainers"]];
    let containers: Vec<&Value> = lists.iter().flat_map(|l| l.as_array().into_iter().flatten()).collect();
    let any = containers.iter().any(|c| {
        ["requests", "limits"].iter().any(|kind| {
            ["cpu", "memory"]
                .iter()
                .any(|name| c["resources"][kind].get(name).is_some_and(|v| !v.is_null()))
        })
    });
    let guaranteed = containers.iter().all(|c| {
        ["cpu", "memory"].iter().all(|name| {
            let (limit, request) = (&c["resources"]["limits"][name], &c["resources"]["requests"][name]);
            !limit.is_null() && limit == request
        })
    });
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

pub(super) fn validate(call: &Call, old: Option<&Value>, new: &Value) -> Result<Vec<FieldError>> {
    let Some(old) = old else {
        let errors = pod_spec::validate(&new["spec"], "spec");
        if errors.is_empty() {
            quota::check(call, new)?;
        }
        return Ok(errors);
    };
    let mut errors = pod_spec::validate(&new["spec"], "spec");
    if errors.is_empty() && without_mutable(&old["spec"], old) != without_mutable(&new["spec"], old) {
        errors.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,\
             `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
             tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
    let kept = |t: &Value| {
        new["spec"]["tolerations"]
            .as_array()
            .is_some_and(|list| list.contains(t))
    };
    if !old["spec"]["tolerations"]
        .as_array()
        .is_none_or(|list| list.iter().all(kept))
    {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    if old["spec"]["containers"] != new["spec"]["containers"] {
        pod_security::check(call, new)?;
    }
    Ok(errors)
}

/// The specification without the fields that may change.
fn without_mutable(spec: &Value, _old: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        for field in ["activeDeadlineSeconds", "tolerations"] {
            fields.shift_remove(field);
        }
    }
    for list in ["containers", "initContainers"] {
        if let Some(containers) = spec.get_mut(list) {
            each(containers, |container| container["image"] = Value::Null);
        }
    }
    spec
}
