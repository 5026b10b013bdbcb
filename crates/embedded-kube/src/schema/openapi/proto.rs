//! OpenAPI v2 in the protobuf form that older kubectl requires (gnostic's `openapi.v2.Document`). It has only the
//! fields that our documents use; the numbers are gnostic's.

use prost::{Message, Oneof};
use serde_json::{Map, Value};

#[derive(Clone, PartialEq, Message)]
struct Document {
    #[prost(string, tag = "1")]
    swagger: String,
    #[prost(message, optional, tag = "2")]
    info: Option<Info>,
    #[prost(message, optional, tag = "8")]
    paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    definitions: Option<NamedSchemas>,
}

#[derive(Clone, PartialEq, Message)]
struct Info {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Paths {
    #[prost(message, repeated, tag = "2")]
    path: Vec<NamedPathItem>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedPathItem {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<PathItem>,
}

#[derive(Clone, PartialEq, Message)]
struct PathItem {
    #[prost(message, optional, tag = "2")]
    get: Option<Operation>,
    #[prost(message, optional, tag = "4")]
    post: Option<Operation>,
    #[prost(message, optional, tag = "8")]
    patch: Option<Operation>,
}

#[derive(Clone, PartialEq, Message)]
struct Operation {
    #[prost(message, repeated, tag = "8")]
    parameters: Vec<ParametersItem>,
    #[prost(message, optional, tag = "9")]
    responses: Option<Responses>,
    #[prost(message, repeated, tag = "13")]
    vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
struct ParametersItem {
    #[prost(message, optional, tag = "1")]
    parameter: Option<Parameter>,
}

#[derive(Clone, PartialEq, Message)]
struct Parameter {
    #[prost(message, optional, tag = "2")]
    non_body_parameter: Option<NonBodyParameter>,
}

#[derive(Clone, PartialEq, Message)]
struct NonBodyParameter {
    #[prost(message, optional, tag = "3")]
    query: Option<QueryParameter>,
}

#[derive(Clone, PartialEq, Message)]
struct QueryParameter {
    #[prost(string, tag = "2")]
    within: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "6")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct Responses {
    #[prost(message, repeated, tag = "1")]
    response_code: Vec<NamedResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedResponseValue {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<ResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseValue {
    #[prost(message, optional, tag = "1")]
    response: Option<Response>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(string, tag = "1")]
    description: String,
}

/// Both `Definitions` and `Properties`.
#[derive(Clone, PartialEq, Message)]
struct NamedSchemas {
    #[prost(message, repeated, tag = "1")]
    additional_properties: Vec<NamedSchema>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedSchema {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct Schema {
    #[prost(string, tag = "1")]
    reference: String,
    #[prost(string, tag = "2")]
    format: String,
    #[prost(string, tag = "4")]
    description: String,
    #[prost(string, repeated, tag = "19")]
    required: Vec<String>,
    #[prost(message, optional, boxed, tag = "21")]
    additional_properties: Option<Box<AdditionalPropertiesItem>>,
    #[prost(message, optional, tag = "22")]
    kind: Option<TypeItem>,
    #[prost(message, optional, tag = "23")]
    items: Option<ItemsItem>,
    #[prost(message, optional, tag = "25")]
    properties: Option<NamedSchemas>,
    #[prost(message, repeated, tag = "31")]
    vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeItem {
    #[prost(string, repeated, tag = "1")]
    value: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ItemsItem {
    #[prost(message, repeated, tag = "1")]
    schema: Vec<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct AdditionalPropertiesItem {
    #[prost(oneof = "Additional", tags = "1, 2")]
    value: Option<Additional>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Additional {
    #[prost(message, tag = "1")]
    Schema(Box<Schema>),
    #[prost(bool, tag = "2")]
    Boolean(bool),
}

#[derive(Clone, PartialEq, Message)]
struct NamedAny {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "2")]
    yaml: String,
}

/// Encodes a document of [`super::v2`].
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let paths = fields(document.get("paths"))
        .map(|(name, item)| NamedPathItem {
            name: name.clone(),
            value: Some(path_item(item)),
        })
        .collect();
    Document {
        swagger: text(document, "swagger"),
        info: document.get("info").map(|info| Info {
            title: text(info, "title"),
            version: text(info, "version"),
        }),
        paths: Some(Paths { path: paths }),
        definitions: Some(schemas(document.get("definitions"))),
    }
    .encode_to_vec()
}

fn path_item(item: &Value) -> PathItem {
    PathItem {
        get: item.get("get").map(operation),
        post: item.get("post").map(operation),
        patch: item.get("patch").map(operation),
    }
}

fn operation(operation: &Value) -> Operation {
    let parameter = |p: &Value| ParametersItem {
        parameter: Some(Parameter {
            non_body_parameter: Some(NonBodyParameter {
                query: Some(QueryParameter {
                    within: text(p, "in"),
                    name: text(p, "name"),
                    kind: text(p, "type"),
                }),
            }),
        }),
    };
    let response = |(name, response): (&String, &Value)| NamedResponseValue {
        name: name.clone(),
        value: Some(ResponseValue {
            response: Some(Response {
                description: text(response, "description"),
            }),
        }),
    };
    Operation {
        parameters: operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .map(parameter)
            .collect(),
        responses: Some(Responses {
            response_code: fields(operation.get("responses")).map(response).collect(),
        }),
        vendor_extension: extensions(operation),
    }
}

fn schemas(map: Option<&Value>) -> NamedSchemas {
    let named = |(name, value): (&String, &Value)| NamedSchema {
        name: name.clone(),
        value: Some(schema(value)),
    };
    NamedSchemas {
        additional_properties: fields(map).map(named).collect(),
    }
}

fn schema(value: &Value) -> Schema {
    Schema {
        reference: text(value, "$ref"),
        format: text(value, "format"),
        description: text(value, "description"),
        required: value["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|r| r.as_str().map(str::to_owned))
            .collect(),
        additional_properties: value.get("additionalProperties").map(|additional| {
            let value = match additional {
                Value::Bool(flag) => Additional::Boolean(*flag),
                other => Additional::Schema(Box::new(schema(other))),
            };
            Box::new(AdditionalPropertiesItem { value: Some(value) })
        }),
        kind: value.get("type").and_then(Value::as_str).map(|kind| TypeItem {
            value: vec![kind.to_owned()],
        }),
        items: value.get("items").map(|items| ItemsItem {
            schema: vec![schema(items)],
        }),
        properties: value.get("properties").map(|properties| schemas(Some(properties))),
        vendor_extension: extensions(value),
    }
}

/// Clients read extensions from their YAML form only; JSON is YAML.
fn extensions(value: &Value) -> Vec<NamedAny> {
    fields(Some(value))
        .filter(|(name, _)| name.starts_with("x-"))
        .map(|(name, value)| NamedAny {
            name: name.clone(),
            value: Some(Any {
                yaml: value.to_string(),
            }),
        })
        .collect()
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn fields(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    static EMPTY: std::sync::OnceLock<Map<String, Value>> = std::sync::OnceLock::new();
    value
        .and_then(Value::as_object)
        .unwrap_or_else(|| EMPTY.get_or_init(Map::new))
        .iter()
}
