//! Numbers and strings printed as Go prints them, because Kubernetes builds its messages with Go's `%v` and `%q`.

use std::fmt::Write;

use serde_json::{Number, Value};

/// A number as Kubernetes represents it after decoding JSON: an integer if it fits 64 bits, else a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Num {
    Int(i64),
    Float(f64),
}

impl Num {
    pub(crate) fn of(number: &Number) -> Num {
        match number.as_i64() {
            Some(int) => Num::Int(int),
            None => Num::Float(number.as_f64().unwrap_or(f64::INFINITY)),
        }
    }

    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Num::Int(int) => int as f64,
            Num::Float(float) => float,
        }
    }
}

/// `%v` of a float64: the shortest text that reads back the same, with an exponent below 1e-4 and from 1e21 on.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let magnitude = value.abs();
    if value != 0.0 && !(1e-4..1e21).contains(&magnitude) {
        // Rust writes 1e21 and 1e-7; Go writes 1e+21 and 1e-07.
        let text = format!("{value:e}");
        let Some((mantissa, exponent)) = text.split_once('e') else {
            return text;
        };
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{value}")
}

/// A number as `%v` prints it.
pub(crate) fn number(number: &Number) -> String {
    match Num::of(number) {
        Num::Int(int) => int.to_string(),
        Num::Float(value) => float(value),
    }
}

/// `%q` of a string.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A value as a field error prints it: numbers and booleans plain, strings quoted, the rest as Go's JSON, which escapes
/// HTML characters.
pub(crate) fn value(value: &Value) -> String {
    match value {
        Value::Number(n) => number(n),
        Value::String(s) => quote(s),
        other => other
            .to_string()
            .replace('&', "\\u0026")
            .replace('<', "\\u003c")
            .replace('>', "\\u003e"),
    }
}

/// The same value with the keys of every object sorted: Go marshals maps that way.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            Value::Object(keys.into_iter().map(|k| (k.clone(), sorted(&map[k]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_as_go_prints_them() {
        for (value, text) in [
            (7.0, "7"),
            (0.5, "0.5"),
            (0.0, "0"),
            (1e6, "1000000"),
            (1e21, "1e+21"),
            (1.5e-7, "1.5e-07"),
            (1e20, "100000000000000000000"),
            (-2.25, "-2.25"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn strings_and_objects() {
        assert_eq!(quote("a\"b\n\u{1}é"), "\"a\\\"b\\n\\x01é\"");
        assert_eq!(
            value(&sorted(&json!({"b": "<", "a": [true, null]}))),
            r#"{"a":[true,null],"b":"\u003c"}"#
        );
        assert_eq!(value(&json!(9)), "9");
    }
}
