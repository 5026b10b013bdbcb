//! JSON as CEL values, typed by a schema.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use cel::Value as Cel;
use cel::objects::{Key, Map};
use serde_json::Value;

use crate::schema::gofmt::Num;
use crate::schema::structural::Schema;

/// Reserved words of CEL, by which a field cannot be selected; in a rule such a field is written `__word__`.
const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name by which a rule selects a property.
pub(super) fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

/// The value with the types of its schema: `number` is a double, date-times are timestamps, bytes are bytes.
pub(super) fn to_cel(value: &Value, schema: Option<&Schema>) -> Cel {
    let kind = schema.map(|s| s.kind.as_str()).unwrap_or_default();
    let format = schema.map(|s| s.format.as_str()).unwrap_or_default();
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (Num::of(number), kind) {
            (Num::Int(int), "number") => Cel::Float(int as f64),
            (Num::Int(int), _) => Cel::Int(int),
            (Num::Float(float), "integer") if float.fract() == 0.0 => Cel::Int(float as i64),
            (Num::Float(float), _) => Cel::Float(float),
        },
        Value::String(text) => typed_string(text, format).unwrap_or_else(|| Cel::String(Arc::new(text.clone()))),
        Value::Array(items) => {
            let schema = schema.and_then(|s| s.items.as_deref());
            Cel::List(Arc::new(items.iter().map(|item| to_cel(item, schema)).collect()))
        }
        Value::Object(fields) => {
            let mut map: HashMap<Key, Cel> = HashMap::with_capacity(fields.len());
            for (name, value) in fields {
                let property = schema.and_then(|s| s.properties.get(name));
                // Keys of maps are data and stay as they are; names of properties are escaped.
                let key = if property.is_some() { escape(name) } else { name.clone() };
                map.insert(
                    Key::from(key),
                    to_cel(value, property.or_else(|| schema.and_then(|s| s.field(name)))),
                );
            }
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

fn typed_string(text: &str, format: &str) -> Option<Cel> {
    match format {
        "byte" => base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()
            .map(|b| Cel::Bytes(Arc::new(b))),
        "date-time" | "datetime" => read(&TIMESTAMP, "timestamp(text)", text),
        "date" => read(&TIMESTAMP, "timestamp(text)", &format!("{text}T00:00:00Z")),
        "duration" => read(&DURATION, "duration(text)", text),
        _ => None,
    }
}

static TIMESTAMP: OnceLock<Option<cel::Program>> = OnceLock::new();
static DURATION: OnceLock<Option<cel::Program>> = OnceLock::new();

/// Lets CEL itself parse times and durations, so that they equal its literals exactly.
fn read(program: &OnceLock<Option<cel::Program>>, expression: &str, text: &str) -> Option<Cel> {
    let program = program
        .get_or_init(|| cel::Program::compile(expression).ok())
        .as_ref()?;
    let mut context = cel::Context::default();
    context.add_variable_from_value("text", text.to_owned());
    program.execute(&context).ok()
}
