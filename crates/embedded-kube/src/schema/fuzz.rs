//! None of these functions panics, whatever JSON it receives: clients can send anything.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::apply::{Kind, Owns, Writer};
use super::custom::CustomKind;
use super::openapi::Served;
use super::table::{Columns, Include};
use super::{apply, builtin, crd_check, error, openapi, quantity, strategic, structural, table, validate};

/// Names that reach code deep inside, and others.
const NAMES: &[&str] = &[
    "spec",
    "status",
    "metadata",
    "name",
    "labels",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "manager",
    "operation",
    "fieldsV1",
    "f:spec",
    "k:{\"name\":\"a\"}",
    "v:1",
    "i:0",
    ".",
    "containers",
    "env",
    "ports",
    "volumes",
    "type",
    "properties",
    "items",
    "additionalProperties",
    "default",
    "required",
    "enum",
    "oneOf",
    "anyOf",
    "not",
    "pattern",
    "nullable",
    "format",
    "minimum",
    "maximum",
    "multipleOf",
    "maxLength",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "rule",
    "message",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "versions",
    "schema",
    "openAPIV3Schema",
    "names",
    "group",
    "containerStatuses",
    "state",
    "terminated",
    "conditions",
    "creationTimestamp",
    "resources",
    "requests",
    "é",
];

const TEXTS: &[&str] = &[
    "",
    "a",
    "object",
    "array",
    "string",
    "integer",
    "number",
    "boolean",
    "map",
    "set",
    "atomic",
    "delete",
    "replace",
    "self.spec == oldSelf.spec",
    "self.a[0].b > 1 && has(self.c)",
    "self.all(x, x > 0)",
    "(",
    "[a-",
    "^a+$",
    "date-time",
    "ipv4",
    "duration",
    "byte",
    "2026-11-15T00:00:00Z",
    "1Gi",
    "-1e400",
    "Apply",
    "Update",
    "Running",
    "é\u{0}\u{202e}",
];

fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => prop::sample::select(NAMES).prop_map(str::to_owned), 1 => "\\PC{0,6}"]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3..10i64).prop_map(Value::from),
        prop::sample::select(TEXTS).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name(), inner), 0..5).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn writer(owns: Owns<'_>) -> Writer<'_> {
    Writer {
        manager: "kubectl",
        subresource: "",
        api_version: "v1",
        now: "2026-11-15T00:00:00Z",
        owns,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn custom_kinds(schema in json(), mut object in json(), old in json()) {
        let schema = json!({"type": "object", "properties": {"spec": schema}});
        let _ = crd_check::check_schema(&schema, "x");
        if let Ok(kind) = CustomKind::new(&schema, "x") {
            kind.admit(&mut object);
            let errors = kind.validate(&json!({"spec": object}), Some(&old));
            let _ = error::aggregate(&errors);
            errors.iter().for_each(|e| drop(e.cause()));
            kind.validate_status(&object, &old);
        }
        let served = Served { group: "a.b", version: "v1", kind: "K", plural: "ks", namespaced: true, schema: Some(&schema) };
        openapi::v2_json(&[served], "v1");
        openapi::v3(&[served], "a.b", "v1", "v1");
    }

    #[test]
    fn definitions(crd in json(), object in json()) {
        let _ = crd_check::check(&crd);
        let _ = crd_check::check(&json!({"spec": crd}));
        let schema = structural::Schema::parse(&crd);
        validate::validate(&object, None, &schema);
    }

    #[test]
    fn patches(mut object in json(), patch in json()) {
        let _ = strategic::patch(&mut object, &patch, "Pod");
        let mut pod = json!({"spec": object, "metadata": {"finalizers": ["a"]}});
        let _ = strategic::patch(&mut pod, &json!({"spec": patch}), "Pod");
    }

    #[test]
    fn applies(live in json(), config in json(), schema in json(), force in any::<bool>()) {
        let schema = structural::Schema::parse(&json!({"properties": {"spec": schema}}));
        for kind in [Kind::BuiltIn("Pod"), Kind::Custom(&schema)] {
            let mut tracked = json!({"spec": live, "metadata": {"managedFields": config}});
            apply::track(None, &mut tracked, kind, writer(Owns::All));
            let _ = apply::apply(Some(&tracked), &json!({"spec": config}), kind, writer(Owns::AllBut(&["status"])), force);
            let _ = apply::apply(Some(&live), &config, kind, writer(Owns::Only(&["status"])), force);
            let mut new = config.clone();
            apply::track(Some(&live), &mut new, kind, writer(Owns::All));
        }
    }

    #[test]
    fn tables(object in json(), columns in json(), path in "\\PC{0,20}") {
        let now = Timestamp::UNIX_EPOCH;
        let kinds = ["Pod", "Service", "EndpointSlice", "Node", "Event", "PersistentVolume", "StatefulSet", "Role"];
        let object = json!({"metadata": object, "spec": object, "status": object});
        for kind in kinds {
            table::table(&Columns::BuiltIn(kind.to_owned()), &[&object], Value::Null, Include::Metadata, true, now);
        }
        table::table(&Columns::custom(Some(&columns)), &[&object], Value::Null, Include::Object, false, now);
        let columns = json!([{"name": "x", "type": "string", "jsonPath": path}, {"type": "integer", "jsonPath": ".spec.name"}]);
        table::table(&Columns::custom(Some(&columns)), &[&object], Value::Null, Include::None, true, now);
    }

    #[test]
    fn rules(rule in "[a-z.()\\[\\]{}<>=!&|+*/%?: 0-9\"']{0,24}") {
        let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]});
        if let Ok(kind) = CustomKind::new(&schema, "x") {
            kind.validate(&json!({"a": 1}), None);
        }
    }

    #[test]
    fn quantities(text in "[-+0-9.eEinumkKMGTPi]{0,40}") {
        quantity::Quantity::parse(&text);
    }
}

proptest! {
    // Building an error message builds the whole schema, so there are fewer of these.
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn built_in_kinds(object in json()) {
        let _ = builtin::decode::<Pod>(&object);
        let _ = builtin::decode::<Pod>(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": object, "spec": object}));
    }
}
