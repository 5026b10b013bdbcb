//! Reads Kubernetes' protobuf form, which Go clients (such as kubectl) send for built-in kinds. Responses are always
//! JSON: every client that sends protobuf accepts it.
//!
//! The field numbers are data, in `protobuf_fields.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// Kubernetes' media type of the form.
pub(crate) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";
/// The maximum nesting of messages; no Kubernetes object has more.
const MAX_DEPTH: usize = 32;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtobufError {
    #[error("it does not begin with the Kubernetes prefix")]
    NoPrefix,
    #[error("it ends in the middle of a field")]
    Truncated,
    #[error("field {0} has a wrong type")]
    WrongType(u64),
    #[error("it is nested too deeply")]
    TooDeep,
    #[error("kind {0:?} of {1:?} is not known in this form; send JSON")]
    UnknownKind(String, String),
}

#[derive(Debug, Clone)]
enum Type {
    Text,
    Bool,
    Integer,
    Float,
    Bytes,
    Quantity,
    IntOrString,
    Raw,
    Time(bool),
    Message(&'static str),
    List(Box<Type>),
    Map(Box<Type>),
    /// A message that is only a list.
    Wrapped(Box<Type>),
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    /// Zero is a value and not the absence of one.
    optional: bool,
    kind: Type,
}

static MESSAGES: LazyLock<HashMap<&'static str, HashMap<u64, Field>>> = LazyLock::new(|| {
    let lines = include_str!("protobuf_fields.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            (name, words.filter_map(parse_field).collect())
        })
        .collect()
});

fn parse_field(text: &'static str) -> Option<(u64, Field)> {
    let (name, rest) = text.split_once('=')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = rest[..digits].parse().ok()?;
    let (optional, kind) = match rest[digits..].strip_prefix('?') {
        Some(kind) => (true, kind),
        None => (false, &rest[digits..]),
    };
    Some((
        number,
        Field {
            name,
            optional,
            kind: parse_type(kind)?,
        },
    ))
}

fn parse_type(text: &'static str) -> Option<Type> {
    let rest = text.get(1..)?;
    Some(match text.as_bytes().first()? {
        b's' => Type::Text,
        b'b' => Type::Bool,
        b'i' => Type::Integer,
        b'f' => Type::Float,
        b'y' => Type::Bytes,
        b'q' => Type::Quantity,
        b'o' => Type::IntOrString,
        b'r' => Type::Raw,
        b't' => Type::Time(false),
        b'u' => Type::Time(true),
        b'.' => Type::Message(rest),
        b'*' => Type::List(Box::new(parse_type(rest)?)),
        b'%' => Type::Map(Box::new(parse_type(rest)?)),
        b'@' => Type::Wrapped(Box::new(parse_type(rest)?)),
        _ => return None,
    })
}

/// Decodes a whole request body.
pub(crate) fn decode(body: &[u8]) -> Result<Value, ProtobufError> {
    let body = body.strip_prefix(MAGIC).ok_or(ProtobufError::NoPrefix)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Fields(body) {
        match field? {
            (1, Wire::Bytes(meta)) => {
                for field in Fields(meta) {
                    match field? {
                        (1, Wire::Bytes(text)) => api_version = text_of(text),
                        (2, Wire::Bytes(text)) => kind = text_of(text),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let package = match api_version.as_str() {
        "v1" => "core",
        "meta.k8s.io/v1" => "meta",
        "authentication.k8s.io/v1" => "authn",
        "authorization.k8s.io/v1" => "authz",
        other => other
            .strip_suffix("/v1")
            .and_then(|group| group.split('.').next())
            .unwrap_or_default(),
    };
    // DeleteOptions is sent in the version of whatever is deleted.
    let name = if kind == "DeleteOptions" {
        "meta.DeleteOptions".to_owned()
    } else {
        format!("{package}.{kind}")
    };
    if !MESSAGES.contains_key(name.as_str()) {
        return Err(ProtobufError::UnknownKind(kind, api_version));
    }
    let mut object = json!({"apiVersion": api_version, "kind": kind});
    if let (Value::Object(fields), Some(object)) = (message(&name, raw, 0)?, object.as_object_mut()) {
        object.extend(fields);
    }
    Ok(object)
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One field in the wire format.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or(ProtobufError::Truncated)?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Truncated)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], ProtobufError> {
        let count = usize::try_from(count).map_err(|_| ProtobufError::Truncated)?;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, Wire<'a>), ProtobufError> {
        let tag = self.varint()?;
        let number = tag >> 3;
        let fixed = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Number(fixed(self.take(8)?)),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Number(fixed(self.take(4)?)),
            _ => return Err(ProtobufError::WrongType(number)),
        };
        Ok((number, wire))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn message(name: &str, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    let mut object = Map::new();
    let Some(known) = MESSAGES.get(name) else {
        return Ok(Value::Object(object));
    };
    for field in Fields(bytes) {
        let (number, wire) = field?;
        let Some(field) = known.get(&number) else { continue };
        match &field.kind {
            Type::List(of) => {
                let item = value(of, number, wire, depth)?;
                if let Value::Array(list) = object.entry(field.name).or_insert_with(|| json!([])) {
                    list.push(item);
                }
            }
            Type::Map(of) => {
                let Wire::Bytes(entry) = wire else {
                    return Err(ProtobufError::WrongType(number));
                };
                let (mut key, mut item) = (String::new(), None);
                for part in Fields(entry) {
                    match part? {
                        (1, Wire::Bytes(text)) => key = text_of(text),
                        (2, wire) => item = Some(value(of, number, wire, depth)?),
                        _ => {}
                    }
                }
                let item = item.unwrap_or_else(|| zero(of));
                if let Value::Object(map) = object.entry(field.name).or_insert_with(|| json!({})) {
                    map.insert(key, item);
                }
            }
            kind => {
                let found = value(kind, number, wire, depth)?;
                match (field.name, found) {
                    ("~", Value::Object(part)) => object.extend(part),
                    (_, found) if !field.optional && is_zero(&found) => {}
                    (name, found) => drop(object.insert(name.to_owned(), found)),
                }
            }
        }
    }
    Ok(Value::Object(object))
}

fn zero(kind: &Type) -> Value {
    match kind {
        Type::Text | Type::Bytes | Type::Quantity => "".into(),
        Type::Bool => false.into(),
        Type::Integer | Type::Float => 0.into(),
        _ => Value::Null,
    }
}

/// What Go writes for a field that was never set.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn value(kind: &Type, number: u64, wire: Wire<'_>, depth: usize) -> Result<Value, ProtobufError> {
    Ok(match (kind, wire) {
        (Type::Bool, Wire::Number(n)) => (n != 0).into(),
        // Negative numbers are written as 64 bits, also for 32-bit fields.
        (Type::Integer, Wire::Number(n)) => (n as i64).into(),
        (Type::Float, Wire::Number(n)) => json!(f64::from_bits(n)),
        (Type::Text, Wire::Bytes(bytes)) => text_of(bytes).into(),
        (Type::Bytes, Wire::Bytes(bytes)) => {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.encode(bytes).into()
        }
        (Type::Raw, Wire::Bytes(bytes)) => {
            let mut raw = Value::Null;
            for field in Fields(bytes) {
                if let (1, Wire::Bytes(json)) = field? {
                    raw = serde_json::from_slice(json).unwrap_or_default();
                }
            }
            raw
        }
        (Type::Quantity, Wire::Bytes(bytes)) => {
            let mut text = String::new();
            for field in Fields(bytes) {
                if let (1, Wire::Bytes(found)) = field? {
                    text = text_of(found);
                }
            }
            text.into()
        }
        (Type::IntOrString, Wire::Bytes(bytes)) => {
            let (mut is_text, mut integer, mut text) = (false, 0i64, String::new());
            for field in Fields(bytes) {
                match field? {
                    (1, Wire::Number(kind)) => is_text = kind == 1,
                    (2, Wire::Number(n)) => integer = n as i64,
                    (3, Wire::Bytes(found)) => text = text_of(found),
                    _ => {}
                }
            }
            if is_text { text.into() } else { integer.into() }
        }
        (Type::Time(micro), Wire::Bytes(bytes)) => time(bytes, *micro)?,
        (Type::Message(name), Wire::Bytes(bytes)) => message(name, bytes, depth + 1)?,
        (Type::Wrapped(of), Wire::Bytes(bytes)) => {
            let mut items = Vec::new();
            for field in Fields(bytes) {
                if let (1, wire) = field? {
                    items.push(value(of, number, wire, depth)?);
                }
            }
            items.into()
        }
        _ => return Err(ProtobufError::WrongType(number)),
    })
}

fn time(bytes: &[u8], micro: bool) -> Result<Value, ProtobufError> {
    let (mut seconds, mut nanos) = (0i64, 0i64);
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Number(n)) => seconds = n as i64,
            (2, Wire::Number(n)) => nanos = n as i64,
            _ => {}
        }
    }
    let nanos = i32::try_from(nanos).unwrap_or(0);
    // Go's zero time, the year 1, means that there is none.
    let Some(at) = jiff::Timestamp::new(seconds, nanos)
        .ok()
        .filter(|_| seconds != 0 && seconds > -60_000_000_000)
    else {
        return Ok(Value::Null);
    };
    let format = if micro {
        "%Y-%m-%dT%H:%M:%S.%6fZ"
    } else {
        "%Y-%m-%dT%H:%M:%SZ"
    };
    Ok(at.strftime(format).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One length-delimited field.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, bytes.len() as u8];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &meta), field(2, raw)].concat()
    }

    #[test]
    fn a_config_map_as_go_writes_it() {
        // given: name, an empty namespace, a zero creation time, and one entry
        let metadata = [field(1, b"a"), field(3, b""), field(8, b"")].concat();
        let entry = [field(1, b"k"), field(2, b"v")].concat();
        let raw = [field(1, &metadata), field(2, &entry)].concat();
        // then
        let object = decode(&envelope("v1", "ConfigMap", &raw)).unwrap();
        assert_eq!(
            object,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}})
        );
    }

    #[test]
    fn every_type_that_is_named_is_there() {
        fn check(kind: &Type) {
            match kind {
                Type::Message(name) => assert!(MESSAGES.contains_key(name), "{name}"),
                Type::List(of) | Type::Map(of) | Type::Wrapped(of) => check(of),
                _ => {}
            }
        }
        for fields in MESSAGES.values() {
            fields.values().for_each(|field| check(&field.kind));
        }
        assert!(MESSAGES["core.PodSpec"].len() > 30);
    }

    #[test]
    fn nonsense_is_an_error_and_never_a_panic() {
        assert!(decode(b"{}").is_err());
        let whole = envelope("v1", "Pod", &field(1, &field(1, b"name")));
        for cut in 0..whole.len() {
            let _ = decode(&whole[..cut]);
        }
        for byte in 0..=255u8 {
            let _ = decode(&envelope("v1", "Pod", &[byte; 40]));
        }
    }
}
