//! Pod specifications, as pods and pod templates share them: defaults and validation.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{default, each, handlers, placement, text};
use crate::api::errors::FieldError;
use crate::api::meta;
use crate::schema::error::Reason;

/// Sets the defaults of Kubernetes.
pub(super) fn defaults(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    default(spec, "restartPolicy", "Always");
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "securityContext", json!({}));
    default(spec, "schedulerName", "default-scheduler");
    if let Some(account) = spec.get("serviceAccountName").or(spec.get("serviceAccount")).cloned()
        && account.as_str().is_some_and(|a| !a.is_empty())
    {
        spec["serviceAccountName"] = account.clone();
        spec["serviceAccount"] = account;
    }
    for list in ["initContainers", "containers"] {
        each(&mut spec[list], container_defaults);
        if spec[list].is_null() {
            spec.as_object_mut().map(|spec| spec.shift_remove(list));
        }
    }
    if let Some(volumes) = spec.get_mut("volumes") {
        each(volumes, volume_defaults);
    }
    if let Some(constraints) = spec.get_mut("topologySpreadConstraints") {
        each(constraints, |constraint| {
            default(constraint, "whenUnsatisfiable", "DoNotSchedule")
        });
    }
}

fn container_defaults(container: &mut Value) {
    default(container, "resources", json!({}));
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    let image = text(container, "image").to_owned();
    default(
        container,
        "imagePullPolicy",
        if is_latest(&image) { "Always" } else { "IfNotPresent" },
    );
    if let Some(ports) = container.get_mut("ports") {
        each(ports, |port| default(port, "protocol", "TCP"));
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if container.get(probe).is_some_and(Value::is_object) {
            let probe = &mut container[probe];
            for (field, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                // Zero means "not set" here.
                if probe[field] == 0 {
                    probe[field] = Value::Null;
                }
                default(probe, field, value);
            }
            handler_defaults(probe);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = container.get_mut("lifecycle").and_then(|l| l.get_mut(hook)) {
            handler_defaults(hook);
        }
    }
    if let Some(env) = container.get_mut("env") {
        each(env, |variable| {
            if let Some(field) = variable.get_mut("valueFrom").and_then(|v| v.get_mut("fieldRef")) {
                default(field, "apiVersion", "v1");
            }
        });
    }
    // A limit is also the request, unless there is one.
    if let Some(limits) = container["resources"].get("limits").and_then(Value::as_object).cloned()
        && !limits.is_empty()
    {
        let resources = &mut container["resources"];
        default(resources, "requests", json!({}));
        for (name, amount) in limits {
            default(&mut resources["requests"], &name, amount);
        }
    }
}

fn handler_defaults(handler: &mut Value) {
    if handler.get("httpGet").is_some_and(Value::is_object) {
        default(&mut handler["httpGet"], "scheme", "HTTP");
        default(&mut handler["httpGet"], "path", "/");
    }
    if handler.get("grpc").is_some_and(Value::is_object) {
        default(&mut handler["grpc"], "service", "");
    }
}

fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or_default();
    !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn volume_defaults(volume: &mut Value) {
    let has_source = volume.as_object().is_some_and(|v| v.keys().any(|k| k != "name"));
    if !has_source {
        volume["emptyDir"] = json!({});
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if volume.get(source).is_some_and(Value::is_object) {
            default(&mut volume[source], "defaultMode", 420);
        }
    }
    if volume.get("hostPath").is_some_and(Value::is_object) {
        default(&mut volume["hostPath"], "type", "");
    }
    let downward = |api: &mut Value| {
        if let Some(items) = api.get_mut("items") {
            each(items, |item| {
                if item.get("fieldRef").is_some_and(Value::is_object) {
                    default(&mut item["fieldRef"], "apiVersion", "v1");
                }
            });
        }
    };
    if let Some(api) = volume.get_mut("downwardAPI") {
        downward(api);
    }
    if let Some(sources) = volume.get_mut("projected").and_then(|p| p.get_mut("sources")) {
        each(sources, |source| {
            if source.get("serviceAccountToken").is_some_and(Value::is_object) {
                default(&mut source["serviceAccountToken"], "expirationSeconds", 3600);
            }
            if let Some(api) = source.get_mut("downwardAPI") {
                downward(api);
            }
        });
    }
}

/// The errors of a specification; `at` is its path in the object.
pub(super) fn validate(spec: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut volumes = HashSet::new();
    for (i, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        let name = text(volume, "name");
        let field = format!("{at}.volumes[{i}].name");
        if name.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else {
            errors.extend(
                meta::dns_label(name)
                    .into_iter()
                    .map(|e| FieldError::invalid(field.clone(), name, e)),
            );
            if !volumes.insert(name) {
                errors.push(FieldError::duplicate(field, name.into()));
            }
        }
    }
    let mut names = HashSet::new();
    let containers = spec["containers"].as_array();
    if containers.is_none_or(Vec::is_empty) {
        errors.push(FieldError::required(format!("{at}.containers"), ""));
    }
    for (list, containers) in [
        ("initContainers", spec["initContainers"].as_array()),
        ("containers", containers),
    ] {
        for (i, container) in containers.into_iter().flatten().enumerate() {
            let at = format!("{at}.{list}[{i}]");
            validate_container(container, &at, &volumes, &mut errors);
            let grace = spec["terminationGracePeriodSeconds"].as_i64();
            handlers::validate(container, &at, list == "initContainers", grace, &mut errors);
            let name = text(container, "name");
            if !name.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{at}.name"), name.into()));
            }
        }
    }
    one_of(
        spec,
        "restartPolicy",
        at,
        &["Always", "OnFailure", "Never"],
        &mut errors,
    );
    one_of(
        spec,
        "dnsPolicy",
        at,
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        &mut errors,
    );
    errors.extend(placement::validate(spec, at));
    handlers::not_negative(spec, "terminationGracePeriodSeconds", at, &mut errors);
    for field in ["hostname", "subdomain"] {
        let name = text(spec, field);
        if !name.is_empty() {
            let field = format!("{at}.{field}");
            errors.extend(
                meta::dns_label(name)
                    .into_iter()
                    .map(|e| FieldError::invalid(field.clone(), name, e)),
            );
        }
    }
    errors
}

fn one_of(object: &Value, field: &str, at: &str, supported: &[&str], errors: &mut Vec<FieldError>) {
    let found = text(object, field);
    if !supported.contains(&found) {
        let supported: Vec<String> = supported.iter().map(|s| s.to_string()).collect();
        errors.push(FieldError::not_supported(format!("{at}.{field}"), found, &supported));
    }
}

fn validate_container(container: &Value, at: &str, volumes: &HashSet<&str>, errors: &mut Vec<FieldError>) {
    let name = text(container, "name");
    let field = format!("{at}.name");
    if name.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else {
        errors.extend(
            meta::dns_label(name)
                .into_iter()
                .map(|e| FieldError::invalid(field.clone(), name, e)),
        );
    }
    let image = text(container, "image");
    if image.is_empty() {
        errors.push(FieldError::required(format!("{at}.image"), ""));
    } else if image.trim() != image {
        let text = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(format!("{at}.image"), image, text));
    }
    for (i, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
        let field = format!("{at}.ports[{i}].containerPort");
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => errors.push(FieldError::required(field, "")),
            1..=65535 => {}
            other => errors.push(FieldError::invalid(
                field,
                other,
                "must be between 1 and 65535, inclusive",
            )),
        }
        one_of(
            port,
            "protocol",
            &format!("{at}.ports[{i}]"),
            &["SCTP", "TCP", "UDP"],
            errors,
        );
    }
    for (i, variable) in container["env"].as_array().into_iter().flatten().enumerate() {
        if text(variable, "name").is_empty() {
            errors.push(FieldError::required(format!("{at}.env[{i}].name"), ""));
        }
        if !text(variable, "value").is_empty() && variable.get("valueFrom").is_some() {
            let text = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(format!("{at}.env[{i}].valueFrom"), "", text));
        }
    }
    let mut paths = HashSet::new();
    for (i, mount) in container["volumeMounts"].as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}.volumeMounts[{i}]");
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if !volumes.contains(name) {
            errors.push(FieldError::new(
                Reason::NotFound,
                format!("{at}.name"),
                Some(name.into()),
                "",
            ));
        }
        if path.is_empty() {
            errors.push(FieldError::required(format!("{at}.mountPath"), ""));
        } else if !paths.insert(path) {
            errors.push(FieldError::invalid(format!("{at}.mountPath"), path, "must be unique"));
        }
    }
    one_of(
        container,
        "imagePullPolicy",
        at,
        &["Always", "IfNotPresent", "Never"],
        errors,
    );
    for kind in ["limits", "requests"] {
        for (name, amount) in container["resources"][kind].as_object().into_iter().flatten() {
            if crate::schema::quantity::Quantity::parse(amount.as_str().unwrap_or_default()).is_none() {
                let field = format!("{at}.resources.{kind}[{name}]");
                let text = "quantities must match the regular expression \
                            '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
                errors.push(FieldError::invalid(field, amount.clone(), text));
            }
        }
    }
    for (name, request) in container["resources"]["requests"].as_object().into_iter().flatten() {
        let limit = &container["resources"]["limits"][name];
        let amount = |v: &Value| v.as_str().and_then(crate::schema::quantity::Quantity::parse);
        if let (Some(asked), Some(most)) = (amount(request), amount(limit))
            && asked > most
        {
            let text = format!(
                "must be less than or equal to {name} limit of {}",
                limit.as_str().unwrap_or_default()
            );
            errors.push(FieldError::invalid(
                format!("{at}.resources.requests"),
                request.clone(),
                text,
            ));
        }
    }
}
