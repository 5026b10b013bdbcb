//! The definitions change only in ways that every stored object and every client of the last release survives: they are
//! compared with those of `tests/released/`, which `./x release` writes.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const HELP: &str = "Objects that users have stored would be refused or lose data. If no release has had this yet, copy deploy/crds/*.yaml \
                    to crates/engines/etcd/tests/released/. A rule that refuses nothing that was taken before is named in new-rules.yaml there.";
const NEW_RULE: &str = ": there was no such rule: ";

/// A CEL rule that the last release did not have, and why no object that it took is refused by it. Rules cannot be compared by what they
/// mean, so that every one that is new or written otherwise is named in `tests/released/new-rules.yaml`.
#[derive(serde::Deserialize)]
struct NewRule {
    #[serde(default)]
    rule: String,
    /// Or a bound, as this test names it.
    #[serde(default)]
    bound: String,
    reason: String,
}

#[test]
fn definitions_are_compatible_with_the_last_release() {
    let folder = std::path::Path::new("tests/released");
    let listed = std::fs::read_to_string(folder.join("new-rules.yaml")).expect("new-rules.yaml");
    let listed: Vec<NewRule> = serde_yaml_ng::from_str(&listed).expect("a list of rules");
    assert!(listed.iter().all(|one| !one.reason.is_empty()), "a rule has no reason");
    let mut breaks = Vec::new();
    for (name, text) in stateward_etcd::api::crds::files() {
        let Ok(released) = std::fs::read_to_string(folder.join(&name)) else {
            continue; // a new kind
        };
        let parse = |text: &str| serde_yaml_ng::from_str::<Value>(text).expect("YAML");
        breaks.extend(
            breaking(&parse(&released), &parse(&text))
                .into_iter()
                .map(|what| format!("{name}: {what}")),
        );
    }
    let is_explained = |what: &String, one: &NewRule| match one.bound.as_str() {
        "" => what.ends_with(&format!("{NEW_RULE}{}", one.rule)),
        bound => what.ends_with(bound),
    };
    for one in &listed {
        let used = breaks.iter().any(|what| is_explained(what, one));
        assert!(used, "new-rules.yaml names what is not new: {}{}", one.rule, one.bound);
    }
    breaks.retain(|what| !listed.iter().any(|one| is_explained(what, one)));
    assert!(breaks.is_empty(), "{}\n{HELP}", breaks.join("\n"));
}

/// What of the new definition breaks the old one.
fn breaking(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for field in [
        "/spec/group",
        "/spec/scope",
        "/spec/names/kind",
        "/spec/names/plural",
        "/metadata/name",
    ] {
        if old.pointer(field) != new.pointer(field) {
            found.push(format!("{field} changed"));
        }
    }
    let words = |value: &Value| -> BTreeSet<String> {
        let list = value["spec"]["names"]["shortNames"].as_array().into_iter().flatten();
        list.map(ToString::to_string).collect()
    };
    if !words(old).is_subset(&words(new)) {
        found.push("a short name was removed".into());
    }
    let versions = |crd: &Value| crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
    for version in versions(old) {
        let name = version["name"].as_str().unwrap_or_default();
        let Some(now) = versions(new)
            .into_iter()
            .find(|now| now["name"] == version["name"] && now["served"] == true)
        else {
            found.push(format!("version {name} is not served any more"));
            continue;
        };
        for part in version["subresources"].as_object().into_iter().flat_map(Map::keys) {
            if now["subresources"].get(part).is_none() {
                found.push(format!("subresource {part} was removed"));
            }
        }
        let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
        compare(&schema(&version), &schema(&now), name, &mut found);
    }
    found
}

fn compare(old: &Value, new: &Value, path: &str, found: &mut Vec<String>) {
    let nothing = Map::new();
    for keyword in [
        "type",
        "format",
        "pattern",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
    ] {
        let loosened = new.get(keyword).is_none() && keyword == "pattern";
        if old.get(keyword) != new.get(keyword) && !loosened {
            found.push(format!("{path}: {keyword} changed"));
        }
    }
    if old["x-kubernetes-preserve-unknown-fields"] == true && new["x-kubernetes-preserve-unknown-fields"] != true {
        found.push(format!("{path}: unknown fields are not kept any more"));
    }
    let rules = |schema: &Value| -> BTreeSet<String> {
        let all = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        all.map(|one| one["rule"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    for rule in rules(new).difference(&rules(old)) {
        found.push(format!("{path}{NEW_RULE}{rule}"));
    }
    let list = |schema: &Value, keyword: &str| -> BTreeSet<String> {
        let values = schema[keyword].as_array().into_iter().flatten();
        values.map(ToString::to_string).collect()
    };
    for field in list(new, "required").difference(&list(old, "required")) {
        found.push(format!("{path}: {field} is required now"));
    }
    if new.get("enum").is_some() && (old.get("enum").is_none() || !list(old, "enum").is_subset(&list(new, "enum"))) {
        found.push(format!("{path}: a value is not allowed any more"));
    }
    let number = |schema: &Value, keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    for keyword in ["minimum", "minLength", "minItems", "minProperties"] {
        if number(new, keyword).is_some_and(|now| number(old, keyword).is_none_or(|before| now > before)) {
            found.push(format!("{path}: {keyword} was raised"));
        }
    }
    for keyword in ["maximum", "maxLength", "maxItems", "maxProperties"] {
        if number(new, keyword).is_some_and(|now| number(old, keyword).is_none_or(|before| now < before)) {
            found.push(format!("{path}: {keyword} was lowered"));
        }
    }
    let properties = |schema: &Value| schema["properties"].as_object().cloned();
    let now = properties(new).unwrap_or_default();
    for (name, property) in &properties(old).unwrap_or(nothing) {
        match now.get(name) {
            Some(new) => compare(property, new, &format!("{path}.{name}"), found),
            None => found.push(format!("{path}.{name} was removed")),
        }
    }
    for keyword in ["items", "additionalProperties"] {
        if old.get(keyword).is_some_and(Value::is_object) {
            compare(&old[keyword], &new[keyword], &format!("{path}.[]"), found);
        }
    }
}

#[test]
fn what_breaks_is_seen_and_what_does_not_is_not() {
    let crd = |schema: Value| serde_json::json!({"spec": {"versions": [{"name": "v1", "served": true, "schema": {"openAPIV3Schema": schema}}]}});
    let old = serde_json::json!({"type": "object", "properties": {
        "size": {"type": "integer", "minimum": 1}, "mode": {"type": "string", "enum": ["a", "b"]},
    }});
    let breaks = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        breaking(&crd(old.clone()), &crd(new))
    };
    assert!(breaks(|_| {}).is_empty());
    assert!(breaks(|new| new["properties"]["more"] = serde_json::json!({"type": "string"})).is_empty());
    assert!(breaks(|new| new["properties"]["mode"]["enum"] = serde_json::json!(["a", "b", "c"])).is_empty());
    assert_eq!(
        breaks(|new| new["properties"]["mode"]["enum"] = serde_json::json!(["a"])).len(),
        1
    );
    assert_eq!(
        breaks(|new| new["properties"]["size"]["minimum"] = serde_json::json!(2)).len(),
        1
    );
    assert_eq!(
        breaks(|new| new["properties"]["size"]["type"] = serde_json::json!("string")).len(),
        1
    );
    let ruled = |rule: &str| serde_json::json!([{"rule": rule, "message": "words may change"}]);
    assert_eq!(
        breaking(
            &crd(old.clone()),
            &crd({
                let mut new = old.clone();
                new["properties"]["size"]["x-kubernetes-validations"] = ruled("self > 2");
                new
            })
        ),
        ["v1.size: there was no such rule: self > 2"]
    );
    assert_eq!(breaks(|new| new["required"] = serde_json::json!(["size"])).len(), 1);
    assert_eq!(
        breaks(|new| drop(new["properties"].as_object_mut().map(|all| all.remove("mode")))).len(),
        1
    );
}
