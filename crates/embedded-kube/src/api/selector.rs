//! Label and field selectors.

use serde_json::Value;

use super::errors::{Result, Status};
use super::resources::Resource;

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    /// `a>1` (true) or `a<1` (false)
    Compare(String, bool, i64),
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        match self {
            Self::In(key, values) => label(key).is_some_and(|l| values.iter().any(|v| v == l)),
            Self::NotIn(key, values) => label(key).is_none_or(|l| values.iter().all(|v| v != l)),
            Self::Exists(key) => label(key).is_some(),
            Self::Absent(key) => label(key).is_none(),
            Self::Compare(key, greater, number) => label(key)
                .and_then(|l| l.parse::<i64>().ok())
                .is_some_and(|l| if *greater { l > *number } else { l < *number }),
        }
    }
}

/// The selectors of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    /// Field path, wanted value, whether it must be equal.
    fields: Vec<(Vec<String>, String, bool)>,
}

impl Selector {
    pub(crate) fn parse(resource: &Resource, labels: Option<&str>, fields: Option<&str>) -> Result<Self> {
        let labels = parse_labels(labels.unwrap_or_default())
            .map_err(|e| Status::bad_request(format!("unable to parse requirement: {e}")))?;
        let fields = parse_fields(resource, fields.unwrap_or_default())?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.labels.iter().all(|r| r.matches(&metadata["labels"]))
            && self.fields.iter().all(|(path, wanted, equal)| {
                let found = path.iter().try_fold(object, |at, step| at.get(step));
                let same = match found {
                    None | Some(Value::Null) => wanted.is_empty() || wanted == "false",
                    Some(Value::String(text)) => text == wanted,
                    Some(Value::Bool(flag)) => wanted == if *flag { "true" } else { "false" },
                    Some(_) => false,
                };
                same == *equal
            })
    }
}

/// Matches a `LabelSelector` object (matchLabels, matchExpressions).
pub(crate) fn label_selector_matches(selector: &Value, labels: &Value) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    let equal = selector["matchLabels"]
        .as_object()
        .is_none_or(|wanted| wanted.iter().all(|(k, v)| label(k) == v.as_str()));
    let expressions = selector["matchExpressions"].as_array().is_none_or(|all| {
        all.iter().all(|e| {
            let key = e["key"].as_str().unwrap_or_default();
            let among = || {
                e["values"]
                    .as_array()
                    .is_some_and(|vs| vs.iter().any(|v| v.as_str() == label(key)))
            };
            match e["operator"].as_str().unwrap_or_default() {
                "In" => label(key).is_some() && among(),
                "NotIn" => label(key).is_none() || !among(),
                "Exists" => label(key).is_some(),
                "DoesNotExist" => label(key).is_none(),
                _ => false,
            }
        })
    });
    equal && expressions
}

fn parse_labels(text: &str) -> std::result::Result<Vec<Requirement>, String> {
    // Commas inside parentheses belong to a set.
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1).ok_or("found ')' without '('")?,
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if depth != 0 {
        return Err("found '(' without ')'".into());
    }
    parts.push(&text[start..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|p| !p.is_empty())
        .map(parse_requirement)
        .collect()
}

fn parse_requirement(text: &str) -> std::result::Result<Requirement, String> {
    let key = |k: &str| -> std::result::Result<String, String> {
        let k = k.trim();
        let valid = !k.is_empty() && k.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        if valid {
            Ok(k.to_owned())
        } else {
            Err(format!("{k:?} is not a label key"))
        }
    };
    let value = |v: &str| -> std::result::Result<String, String> {
        let v = v.trim();
        let valid = v.len() <= 63 && v.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if valid {
            Ok(v.to_owned())
        } else {
            Err(format!("{v:?} is not a label value"))
        }
    };
    if let Some((head, set)) = text.split_once('(') {
        let set = set
            .trim_end()
            .strip_suffix(')')
            .ok_or_else(|| format!("{text:?} does not end with ')'"))?;
        let values = set.split(',').map(value).collect::<std::result::Result<Vec<_>, _>>()?;
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(k), Some("in"), None) => Ok(Requirement::In(key(k)?, values)),
            (Some(k), Some("notin"), None) => Ok(Requirement::NotIn(key(k)?, values)),
            _ => Err(format!("{text:?}: expected 'in' or 'notin' before '('")),
        };
    }
    if let Some((k, v)) = text.split_once("!=") {
        return Ok(Requirement::NotIn(key(k)?, vec![value(v)?]));
    }
    if let Some((k, v)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Requirement::In(key(k)?, vec![value(v)?]));
    }
    for (sign, greater) in [('>', true), ('<', false)] {
        if let Some((k, v)) = text.split_once(sign) {
            let number = v.trim().parse().map_err(|_| format!("{v:?} is not an integer"))?;
            return Ok(Requirement::Compare(key(k)?, greater, number));
        }
    }
    match text.strip_prefix('!') {
        Some(k) => Ok(Requirement::Absent(key(k)?)),
        None => Ok(Requirement::Exists(key(text)?)),
    }
}

/// The field labels each kind supports, as in Kubernetes.
fn supported_fields(resource: &Resource) -> &'static [&'static str] {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "secrets") => &["type"],
        ("", "namespaces") => &["status.phase", "name"],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        _ => &[],
    }
}

fn parse_fields(resource: &Resource, text: &str) -> Result<Vec<(Vec<String>, String, bool)>> {
    let mut found = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (field, wanted, equal) = if let Some((f, w)) = part.split_once("!=") {
            (f, w, false)
        } else if let Some((f, w)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (f, w, true)
        } else {
            return Err(Status::bad_request(format!(
                "invalid selector: {part:?}; can't understand {part:?}"
            )));
        };
        let field = field.trim();
        let common = field == "metadata.name" || (field == "metadata.namespace" && resource.namespaced);
        let selectable = resource
            .custom()
            .is_some_and(|c| c.selectable_fields.iter().any(|f| f == field));
        if !common && !selectable && !supported_fields(resource).contains(&field) {
            let own = !supported_fields(resource).is_empty() || resource.custom().is_some();
            let text = if own {
                format!("field label not supported: {field}")
            } else {
                format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            };
            return Err(Status::bad_request(text));
        }
        let path = match (resource.plural.as_str(), field) {
            ("events", "source") => vec!["source", "component"],
            ("events", "reportingController") => vec!["reportingComponent"],
            // Events are stored in their core shape.
            ("events", f) if f.starts_with("regarding.") => {
                vec!["involvedObject", f.trim_start_matches("regarding.")]
            }
            ("namespaces", "name") => vec!["metadata", "name"],
            (_, f) => f.split('.').collect(),
        };
        found.push((
            path.into_iter().map(str::to_owned).collect(),
            wanted.trim().to_owned(),
            equal,
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn label_selectors_select() {
        let object =
            json!({"metadata": {"name": "p", "labels": {"app": "etcd", "n": "5"}}, "status": {"phase": "Running"}});
        let pods = super::super::resources::built_in()
            .into_iter()
            .find(|r| r.plural == "pods")
            .unwrap();
        let matches = |labels: &str, fields: &str| {
            Selector::parse(&pods, Some(labels), Some(fields))
                .unwrap()
                .matches(&object)
        };
        for yes in [
            "",
            "app=etcd",
            "app==etcd",
            "app in (etcd, x),n",
            "!gone",
            "gone!=x",
            "gone notin (a)",
            "n>4",
            "n<6",
        ] {
            assert!(matches(yes, ""), "{yes}");
        }
        for no in ["app=x", "gone", "!app", "app notin (etcd)", "app!=etcd", "n>5"] {
            assert!(!matches(no, ""), "{no}");
        }
        assert!(matches("", "metadata.name=p,status.phase!=Failed,spec.nodeName="));
        assert!(!matches("", "status.phase=Pending"));
        for bad in ["a in (b", "a)", "a b", "=x", "a in", "a=b c"] {
            assert!(Selector::parse(&pods, Some(bad), None).is_err(), "{bad}");
        }
        assert!(Selector::parse(&pods, None, Some("spec.nonsense=1")).is_err());
    }
}
