//! Services: addresses and ports, allocated once and kept.

use std::net::Ipv4Addr;

use rand::Rng;
use serde_json::{Value, json};

use super::{default, each, text};
use crate::api::errors::{FieldError, Result, Status};
use crate::api::meta;
use crate::api::rest::Call;

const NODE_PORTS: std::ops::Range<i64> = 30000..32768;

pub(super) fn defaults(service: &mut Value) {
    default(service, "spec", json!({}));
    let spec = &mut service["spec"];
    default(spec, "type", "ClusterIP");
    default(spec, "sessionAffinity", "None");
    if spec["sessionAffinity"] == "ClientIP" {
        default(
            spec,
            "sessionAffinityConfig",
            json!({"clientIP": {"timeoutSeconds": 10800}}),
        );
    }
    if let Some(ports) = spec.get_mut("ports") {
        each(ports, |port| {
            default(port, "protocol", "TCP");
            let number = port["port"].clone();
            if port["targetPort"] == 0 || port["targetPort"] == "" {
                port["targetPort"] = Value::Null;
            }
            default(port, "targetPort", number);
        });
    }
    let kind = text(spec, "type").to_owned();
    if kind == "ExternalName" {
        return;
    }
    default(spec, "internalTrafficPolicy", "Cluster");
    default(spec, "ipFamilies", json!(["IPv4"]));
    default(spec, "ipFamilyPolicy", "SingleStack");
    if kind == "NodePort" || kind == "LoadBalancer" {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

pub(super) fn on_create(call: &Call, service: &mut Value) -> Result<()> {
    service["status"] = json!({"loadBalancer": {}});
    allocate(call, service, None)
}

pub(super) fn on_update(call: &Call, old: &Value, new: &mut Value) -> Result<()> {
    // Allocated values stay unless the client changes them explicitly.
    if text(&new["spec"], "type") != "ExternalName" && text(&old["spec"], "type") != "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if new["spec"].get(field).is_none_or(|v| v.is_null() || v == "") && old["spec"].get(field).is_some() {
                new["spec"][field] = old["spec"][field].clone();
            }
        }
    }
    defaults(new);
    allocate(call, new, Some(old))
}

fn allocate(call: &Call, service: &mut Value, old: Option<&Value>) -> Result<()> {
    let name = meta::name(service).to_owned();
    let snapshot = call.server.store.snapshot();
    let others: Vec<&Value> = snapshot
        .list("services", "", None)
        .map(|(_, o)| &o.value)
        .filter(|o| meta::uid(o) != meta::uid(service))
        .collect();
    let used = |ip: Ipv4Addr| others.iter().any(|o| text(&o["spec"], "clusterIP") == ip.to_string());
    let spec = &mut service["spec"];
    let kind = text(spec, "type").to_owned();
    if kind == "ExternalName" {
        if let Some(spec) = spec.as_object_mut() {
            for field in ["clusterIP", "clusterIPs"] {
                spec.shift_remove(field);
            }
        }
        return Ok(());
    }
    if text(spec, "clusterIP").is_empty()
        && let Some(first) = spec["clusterIPs"].get(0).cloned()
    {
        spec["clusterIP"] = first;
    }
    let wanted = text(spec, "clusterIP").to_owned();
    let unchanged = old.is_some_and(|o| text(&o["spec"], "clusterIP") == wanted);
    match wanted.as_str() {
        "" => {
            let full = || Status::internal("failed to allocate a serviceIP: range is full");
            spec["clusterIP"] = call.server.network.allocate(used).ok_or_else(full)?.to_string().into();
        }
        "None" => {}
        _ if unchanged => {}
        wanted => {
            let problem = match wanted.parse::<Ipv4Addr>() {
                Err(_) => Some(format!("{wanted} is not an IPv4 address")),
                Ok(ip) if !call.server.network.range().is_service(ip) => {
                    let (first, prefix) = call.server.network.range().services();
                    Some(format!(
                        "failed to allocate IP {ip}: the provided IP ({ip}) is not in the valid range. The range of \
                         valid IPs is {first}/{prefix}"
                    ))
                }
                Ok(ip) if used(ip) => Some(format!("failed to allocate IP {ip}: provided IP is already allocated")),
                Ok(_) => None,
            };
            if let Some(problem) = problem {
                let wrong = FieldError::invalid("spec.clusterIPs", json!([wanted]), problem);
                return Err(Status::invalid(&call.resource, &name, &[wrong]));
            }
        }
    }
    spec["clusterIPs"] = json!([spec["clusterIP"]]);
    if kind == "NodePort" || kind == "LoadBalancer" {
        let taken: Vec<i64> = others
            .iter()
            .flat_map(|o| o["spec"]["ports"].as_array().into_iter().flatten())
            .filter_map(|p| p["nodePort"].as_i64())
            .collect();
        let old_ports = old.map(|o| o["spec"]["ports"].clone()).unwrap_or_default();
        if let Some(ports) = spec.get_mut("ports") {
            each(ports, |port| {
                if port["nodePort"].as_i64().unwrap_or(0) == 0 {
                    let kept = old_ports
                        .as_array()
                        .into_iter()
                        .flatten()
                        .find(|p| p["port"] == port["port"]);
                    let kept = kept.and_then(|p| p["nodePort"].as_i64());
                    let fresh = || {
                        let start = rand::rng().random_range(NODE_PORTS);
                        (start..NODE_PORTS.end)
                            .chain(NODE_PORTS.start..start)
                            .find(|p| !taken.contains(p))
                    };
                    port["nodePort"] = kept.or_else(fresh).into();
                }
            });
        }
    }
    Ok(())
}

pub(super) fn validate(_call: &Call, old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let spec = &new["spec"];
    let mut errors = Vec::new();
    let kind = text(spec, "type");
    if !["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"].contains(&kind) {
        let supported = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"].map(str::to_owned);
        errors.push(FieldError::not_supported("spec.type", kind, &supported));
    }
    let affinity = text(spec, "sessionAffinity");
    if !["ClientIP", "None"].contains(&affinity) {
        let supported = ["ClientIP", "None"].map(str::to_owned);
        errors.push(FieldError::not_supported("spec.sessionAffinity", affinity, &supported));
    }
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    if ports.is_empty() && text(spec, "clusterIP") != "None" && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    if kind == "ExternalName" && text(spec, "externalName").is_empty() {
        errors.push(FieldError::required("spec.externalName", ""));
    }
    let mut names = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{i}]");
        let name = text(port, "name");
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if !name.is_empty() {
            let field = format!("{at}.name");
            errors.extend(
                meta::dns_label(name)
                    .into_iter()
                    .map(|e| FieldError::invalid(field.clone(), name, e)),
            );
            if names.contains(&name) {
                errors.push(FieldError::duplicate(field, name.into()));
            }
            names.push(name);
        }
        let protocol = text(port, "protocol");
        if !["SCTP", "TCP", "UDP"].contains(&protocol) {
            let supported = ["SCTP", "TCP", "UDP"].map(str::to_owned);
            errors.push(FieldError::not_supported(
                format!("{at}.protocol"),
                protocol,
                &supported,
            ));
        }
        let range = "must be between 1 and 65535, inclusive";
        if !(1..=65535).contains(&port["port"].as_i64().unwrap_or(0)) {
            errors.push(FieldError::invalid(format!("{at}.port"), port["port"].clone(), range));
        }
        if port["targetPort"].as_i64().is_some_and(|p| !(1..=65535).contains(&p)) {
            errors.push(FieldError::invalid(
                format!("{at}.targetPort"),
                port["targetPort"].clone(),
                range,
            ));
        }
    }
    if let Some(old) = old {
        let (before, after) = (text(&old["spec"], "clusterIP"), text(spec, "clusterIP"));
        if text(&old["spec"], "type") != "ExternalName" && kind != "ExternalName" && before != after {
            let value = spec["clusterIPs"].clone();
            errors.push(FieldError::invalid(
                "spec.clusterIPs[0]",
                value,
                "may not change once set",
            ));
        }
    }
    errors
}
