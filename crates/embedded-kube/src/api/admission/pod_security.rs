//! Pod security standards, enforced where the namespace requests it with `pod-security.kubernetes.io/enforce: baseline
//! | restricted`.

use serde_json::Value;

use super::text;
use crate::api::errors::{Result, Status};
use crate::api::meta;
use crate::api::rest::Call;
use crate::api::store::Key;

const LABEL: &str = "pod-security.kubernetes.io/enforce";

pub(super) fn check(call: &Call, pod: &Value) -> Result<()> {
    let Some(namespace) = call.server.store.get(&Key::new("namespaces", "", call.namespace())) else {
        return Ok(());
    };
    let labels = &namespace.value["metadata"]["labels"];
    let level = text(labels, LABEL);
    let violations = match level {
        "baseline" => baseline(&pod["spec"]),
        "restricted" => {
            let mut all = baseline(&pod["spec"]);
            all.extend(restricted(&pod["spec"]));
            all
        }
        _ => return Ok(()),
    };
    if violations.is_empty() {
        return Ok(());
    }
    let version = Some(text(labels, "pod-security.kubernetes.io/enforce-version")).filter(|v| !v.is_empty());
    let why = format!(
        "violates PodSecurity \"{level}:{}\": {}",
        version.unwrap_or("latest"),
        violations.join(", ")
    );
    Err(Status::forbidden(&call.resource, meta::name(pod), why))
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| spec[list].as_array().into_iter().flatten())
}

/// The quoted names of the containers for which `wrong` holds, with the right noun.
fn offenders(spec: &Value, wrong: impl Fn(&Value) -> bool) -> Option<String> {
    let names: Vec<String> = containers(spec)
        .filter(|c| wrong(c))
        .map(|c| format!("{:?}", text(c, "name")))
        .collect();
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("container {one}")),
        many => Some(format!("containers {}", many.join(", "))),
    }
}

fn baseline(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let host: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|f| spec[**f] == true)
        .map(|f| format!("{f}=true"))
        .collect();
    if !host.is_empty() {
        found.push(format!("host namespaces ({})", host.join(", ")));
    }
    if let Some(who) = offenders(spec, |c| c["securityContext"]["privileged"] == true) {
        found.push(format!(
            "privileged ({who} must not set securityContext.privileged=true)"
        ));
    }
    const ALLOWED: [&str; 13] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    let added = |c: &Value| -> Vec<String> {
        let list = c["securityContext"]["capabilities"]["add"].as_array();
        let names = list.into_iter().flatten().filter_map(Value::as_str);
        names
            .filter(|n| !ALLOWED.contains(n))
            .map(|n| format!("{n:?}"))
            .collect()
    };
    if let Some(who) = offenders(spec, |c| !added(c).is_empty()) {
        let all: Vec<String> = containers(spec).flat_map(added).collect();
        found.push(format!(
            "non-default capabilities ({who} must not include {} in securityContext.capabilities.add)",
            all.join(", ")
        ));
    }
    let volumes = spec["volumes"].as_array();
    let paths: Vec<String> = volumes
        .into_iter()
        .flatten()
        .filter(|v| v["hostPath"].is_object())
        .map(|v| format!("{:?}", text(v, "name")))
        .collect();
    match paths.as_slice() {
        [] => {}
        [one] => found.push(format!("hostPath volumes (volume {one})")),
        many => found.push(format!("hostPath volumes (volumes {})", many.join(", "))),
    }
    let host_ports = |c: &Value| {
        c["ports"]
            .as_array()
            .is_some_and(|ports| ports.iter().any(|p| p["hostPort"].as_i64().unwrap_or(0) != 0))
    };
    if let Some(who) = offenders(spec, host_ports) {
        found.push(format!("hostPort ({who} uses hostPorts)"));
    }
    found
}

fn restricted(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(who) = offenders(spec, |c| c["securityContext"]["allowPrivilegeEscalation"] != false) {
        found.push(format!(
            "allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)"
        ));
    }
    let drops_all = |c: &Value| {
        c["securityContext"]["capabilities"]["drop"]
            .as_array()
            .is_some_and(|list| list.iter().any(|d| d == "ALL"))
    };
    if let Some(who) = offenders(spec, |c| !drops_all(c)) {
        found.push(format!(
            "unrestricted capabilities ({who} must set securityContext.capabilities.drop=[\"ALL\"])"
        ));
    }
    let pod = &spec["securityContext"];
    let non_root = |c: &Value| {
        c["securityContext"]["runAsNonRoot"]
            .as_bool()
            .or(pod["runAsNonRoot"].as_bool())
    };
    if let Some(who) = offenders(spec, |c| non_root(c) != Some(true)) {
        found.push(format!(
            "runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)"
        ));
    }
    if pod["runAsUser"] == 0 {
        found.push("runAsUser=0 (pod must not set runAsUser=0)".into());
    }
    if let Some(who) = offenders(spec, |c| c["securityContext"]["runAsUser"] == 0) {
        found.push(format!("runAsUser=0 ({who} must not set runAsUser=0)"));
    }
    let seccomp = |c: &Value| {
        let own = c["securityContext"]["seccompProfile"]["type"].as_str();
        matches!(
            own.or(pod["seccompProfile"]["type"].as_str()),
            Some("RuntimeDefault" | "Localhost")
        )
    };
    if let Some(who) = offenders(spec, |c| !seccomp(c)) {
        found.push(format!(
            "seccompProfile (pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
             \"Localhost\")"
        ));
    }
    found
}
