//! Tables: the columns that `kubectl get` prints, as the Kubernetes API server builds them.

pub(crate) mod jsonpath;
mod pod;
mod read;
mod rows;

use jiff::Timestamp;
use serde_json::{Value, json};

use self::jsonpath::Path;
use self::read::{number, since, text};
use self::rows::{cells, headers};
use super::gofmt;

/// The columns of a kind.
#[derive(Clone, Debug)]
pub(crate) enum Columns {
    /// A built-in kind, by its name (`Pod`).
    BuiltIn(String),
    /// A custom kind; build it once per version with [`Columns::custom`].
    Custom(Vec<Custom>),
}

/// One of `additionalPrinterColumns`.
#[derive(Clone, Debug)]
pub(crate) struct Custom {
    path: Option<Path>,
    kind: String,
    definition: Value,
}

/// What the rows carry of their objects (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    /// Nothing.
    None,
    /// The metadata: the default.
    Metadata,
    /// The whole object.
    Object,
}

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

impl Columns {
    /// From a version's `additionalPrinterColumns`; without any, there is the age.
    pub(crate) fn custom(columns: Option<&Value>) -> Columns {
        let age = json!([{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]);
        let columns = columns
            .filter(|c| c.as_array().is_some_and(|c| !c.is_empty()))
            .unwrap_or(&age);
        let one = |column: &Value| {
            let path = text(column, "/jsonPath");
            let description = match text(column, "/description") {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                text => text.to_owned(),
            };
            Custom {
                path: Path::parse(path),
                kind: text(column, "/type").to_owned(),
                definition: json!({
                    "name": text(column, "/name"),
                    "type": text(column, "/type"),
                    "format": text(column, "/format"),
                    "description": description,
                    "priority": number(column, "/priority"),
                }),
            }
        };
        Columns::Custom(columns.as_array().into_iter().flatten().map(one).collect())
    }

    fn definitions(&self) -> Vec<Value> {
        match self {
            Columns::Custom(columns) => {
                let name =
                    json!({"name": "Name", "type": "string", "format": "name", "description": NAME, "priority": 0});
                std::iter::once(name)
                    .chain(columns.iter().map(|c| c.definition.clone()))
                    .collect()
            }
            Columns::BuiltIn(kind) => headers(kind).iter().map(definition).collect(),
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match self {
            Columns::Custom(columns) => {
                let name: Value = text(object, "/metadata/name").into();
                std::iter::once(name)
                    .chain(columns.iter().map(|c| c.cell(object, now)))
                    .collect()
            }
            Columns::BuiltIn(kind) => cells(kind, object, now),
        }
    }
}

impl Custom {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(value) = self.path.as_ref().and_then(|path| path.find(object).into_iter().next()) else {
            return Value::Null;
        };
        match (self.kind.as_str(), value) {
            ("string", Value::String(text)) => text.as_str().into(),
            ("string", Value::Number(number)) => gofmt::number(number).into(),
            ("string", Value::Null) => Value::Null,
            ("string", other) => gofmt::sorted(other).to_string().into(),
            ("integer", Value::Number(number)) => gofmt::Num::of(number)
                .as_f64()
                .trunc()
                .to_string()
                .parse::<i64>()
                .ok()
                .into(),
            ("number", Value::Number(number)) => gofmt::Num::of(number).as_f64().into(),
            ("boolean", Value::Bool(flag)) => (*flag).into(),
            ("date", Value::String(text)) => match text.parse::<Timestamp>() {
                Ok(time) => since(time, now).into(),
                Err(_) => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}

/// A `Table`. `list` is the metadata of the list (`resourceVersion`, `continue`); `headers` is false for all but the
/// first event of a watch.
pub(crate) fn table(
    columns: &Columns,
    objects: &[&Value],
    list: Value,
    include: Include,
    headers: bool,
    now: Timestamp,
) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({"cells": columns.cells(object, now)});
            let done = match (columns, text(object, "/status/phase")) {
                (Columns::BuiltIn(kind), phase @ ("Succeeded" | "Failed")) if kind == "Pod" => Some(phase),
                _ => None,
            };
            if let Some(phase) = done {
                let message = match phase {
                    "Succeeded" => "The pod has completed successfully.",
                    _ => "The pod failed.",
                };
                row["conditions"] =
                    json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]);
            }
            row["object"] = match include {
                Include::None => Value::Null,
                Include::Object => (*object).clone(),
                Include::Metadata => json!({
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
                }),
            };
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list,
        "columnDefinitions": if headers { Value::from(columns.definitions()) } else { Value::Null },
        "rows": rows,
    })
}

fn definition(header: &&str) -> Value {
    let name = header.trim_start_matches(['+', '#', '?', '@']);
    let kind = match header.trim_start_matches('+').chars().next() {
        Some('#') => "integer",
        Some('?') => "boolean",
        Some('@') => "date",
        _ => "string",
    };
    json!({
        "name": name,
        "type": kind,
        "format": if name == "Name" { "name" } else { "" },
        "description": if name == "Name" { NAME } else { "" },
        "priority": i32::from(header.starts_with('+')),
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        kind: Option<String>,
        columns: Option<Value>,
        object: Value,
        cells: Vec<Value>,
    }

    #[test]
    fn rows_read_as_in_kubernetes() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let cases: Vec<Case> = serde_yaml_ng::from_str(include_str!("../fixtures/tables.yaml")).unwrap();
        for case in cases {
            let columns = match &case.kind {
                Some(kind) => Columns::BuiltIn(kind.clone()),
                None => Columns::custom(case.columns.as_ref()),
            };
            assert_eq!(columns.cells(&case.object, now), case.cells, "{}", case.name);
            assert_eq!(columns.definitions().len(), case.cells.len(), "{}", case.name);
        }
    }

    #[test]
    fn ages() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        for (seconds, text) in [
            (0, "0s"),
            (-1, "0s"),
            (-5, "<invalid>"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600 + 60, "9h"),
            (50 * 3600, "2d2h"),
            (48 * 3600, "2d"),
            (10 * 86400, "10d"),
            (800 * 86400, "2y70d"),
            (4000 * 86400, "10y"),
        ] {
            let time = Timestamp::from_second(now.as_second() - seconds).unwrap();
            assert_eq!(since(time, now), text);
        }
    }

    #[test]
    fn a_table_carries_metadata_of_its_objects() {
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-11-15T11:59:00Z"}, "spec": {}});
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let columns = Columns::custom(None);
        let table = table(
            &columns,
            &[&object],
            json!({"resourceVersion": "5"}),
            Include::Metadata,
            true,
            now,
        );
        assert_eq!(table["columnDefinitions"][1]["name"], "Age");
        assert_eq!(table["rows"][0]["cells"], json!(["x", "60s"]));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["metadata"]["resourceVersion"], "5");
    }
}
