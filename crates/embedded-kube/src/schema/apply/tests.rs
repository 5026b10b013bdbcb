use serde::Deserialize;

use super::*;
use crate::schema::custom::CustomKind;

#[derive(Deserialize)]
struct Case {
    name: String,
    kind: Option<String>,
    schema: Option<Value>,
    status: Option<Value>,
    #[serde(default)]
    fields_only: bool,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    op: String,
    manager: String,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    subresource: String,
    object: Value,
    result: Option<Value>,
    managers: Option<Vec<Value>>,
    error: Option<String>,
    causes: Option<Vec<Value>>,
}

fn play(case: &Case) {
    let custom = case.schema.as_ref().map(|spec| {
        let mut properties = json!({"spec": spec});
        if let Some(status) = &case.status {
            properties["status"] = status.clone();
        }
        CustomKind::new(&json!({"type": "object", "properties": properties}), "").unwrap()
    });
    let kind = match (&custom, &case.kind) {
        (Some(custom), _) => Kind::Custom(&custom.schema),
        (None, kind) => Kind::BuiltIn(kind.as_deref().unwrap()),
    };
    let mut live: Option<Value> = None;
    let identity = json!({"apiVersion": "v1", "kind": case.kind, "metadata": {"name": "x"}});
    for (number, step) in case.steps.iter().enumerate() {
        let place = format!("{} step {number}", case.name);
        let writer = Writer {
            manager: &step.manager,
            subresource: &step.subresource,
            api_version: "v1",
            now: "2026-01-01T00:00:00Z",
            owns: match (&case.status, step.subresource.as_str()) {
                (Some(_), "status") => Owns::Only(&["status"]),
                (Some(_), _) => Owns::AllBut(&["status"]),
                (None, _) => Owns::All,
            },
        };
        let admit = |object: &mut Value| {
            if let Some(custom) = &custom {
                custom.admit(object);
            }
        };
        let outcome = match step.op.as_str() {
            "apply" => {
                let mut config = step.object.clone();
                json_patch::merge(&mut config, &identity);
                if case.status.is_some() && step.subresource.is_empty() {
                    config.as_object_mut().unwrap().remove("status");
                }
                apply(live.as_ref(), &config, kind, writer, step.force).map(|mut object| {
                    admit(&mut object);
                    object
                })
            }
            "patch" => {
                let mut new = live.clone().unwrap();
                json_patch::merge(&mut new, &step.object);
                admit(&mut new);
                track(live.as_ref(), &mut new, kind, writer);
                Ok(new)
            }
            _ => {
                let mut new = step.object.clone();
                json_patch::merge(&mut new, &identity);
                admit(&mut new);
                track(live.as_ref(), &mut new, kind, writer);
                Ok(new)
            }
        };
        match (outcome, &step.error) {
            (Ok(object), None) => {
                let managers: Vec<Value> = object["metadata"]["managedFields"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|entry| {
                        let mut shown = json!({"manager": entry["manager"], "operation": entry["operation"], "fieldsV1": entry["fieldsV1"], "timed": entry.get("time").is_some()});
                        if let Some(subresource) = entry.get("subresource") {
                            shown["subresource"] = subresource.clone();
                        }
                        shown
                    })
                    .collect();
                // The order depends on the time, which the server of the fixture had with a finer resolution than this test.
                let sorted = |mut list: Vec<Value>| {
                    list.sort_by_key(|entry| gofmt::sorted(entry).to_string());
                    Value::from(list)
                };
                assert_eq!(
                    sorted(managers),
                    sorted(step.managers.clone().unwrap_or_default()),
                    "{place}"
                );
                if !case.fields_only {
                    let mut shown = object.clone();
                    strip_managed(&mut shown);
                    json_patch::merge(
                        &mut shown,
                        &json!({"apiVersion": null, "kind": null, "metadata": {"name": null}}),
                    );
                    if shown["metadata"].as_object().is_some_and(Map::is_empty) {
                        shown.as_object_mut().unwrap().remove("metadata");
                    }
                    assert_eq!(Some(&shown), step.result.as_ref(), "{place}");
                }
                live = Some(object);
            }
            (Err(error), Some(expected)) => {
                let expected = expected.split("): ").last().unwrap();
                assert!(
                    error.to_string().ends_with(expected),
                    "{place}: {error} instead of {expected}"
                );
                if let ApplyError::Conflict { causes, .. } = error {
                    assert_eq!(json!(causes), json!(step.causes), "{place}");
                }
            }
            (outcome, expected) => panic!("{place}: {outcome:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn undeclared_fields_are_rejected() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string"},
        "e": {"type": "object"},
        "l": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}},
    }}}});
    let kind = CustomKind::new(&schema, "").unwrap();
    let writer = Writer {
        manager: "m",
        subresource: "",
        api_version: "a.b/v1",
        now: "2026-01-01T00:00:00Z",
        owns: Owns::All,
    };
    for (spec, path) in [
        (json!({"foo": 1, "bar": 2}), Some(".spec.bar")),
        (json!({"l": [{"q": 1}]}), Some(".spec.l[0].q")),
        (json!({"a": "x", "e": {"x": 1}, "l": [{"n": "y"}]}), None),
    ] {
        let config = json!({"apiVersion": "a.b/v1", "kind": "K", "metadata": {"name": "x"}, "spec": spec});
        let outcome = apply(None, &config, Kind::Custom(&kind.schema), writer, false);
        let text = outcome.err().map(|e| e.to_string());
        let expected = path.map(|path| {
            format!("failed to create typed patch object (/x; a.b/v1, Kind=K): {path}: field not declared in schema")
        });
        assert_eq!(text, expected);
    }
}

#[test]
fn sequences_end_as_in_kubernetes() {
    let cases: Vec<Case> = serde_yaml_ng::from_str(include_str!("../fixtures/apply.yaml")).unwrap();
    cases.iter().for_each(play);
}
