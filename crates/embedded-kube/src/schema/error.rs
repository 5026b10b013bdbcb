//! Errors of one field, with the messages of Kubernetes.
//!
//! Clients parse and people search for these messages, so they follow `k8s.io/apimachinery/pkg/util/validation/field`
//! exactly: `spec.size: Invalid value: 9: spec.size in body should be less than or equal to 7`.

use std::fmt;

use serde_json::{Value, json};

use super::gofmt;

/// The kind of a field error. Its `reason` is what a `Status` carries in `details.causes[].reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    Duplicate,
    TooLong,
    TooMany,
    NotFound,
}

impl Reason {
    /// The machine-readable name, as in `details.causes[].reason`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reason::Required => "FieldValueRequired",
            Reason::Invalid => "FieldValueInvalid",
            Reason::TypeInvalid => "FieldValueTypeInvalid",
            Reason::NotSupported => "FieldValueNotSupported",
            Reason::Forbidden => "FieldValueForbidden",
            Reason::Duplicate => "FieldValueDuplicate",
            Reason::TooLong => "FieldValueTooLong",
            Reason::TooMany => "FieldValueTooMany",
            Reason::NotFound => "FieldValueNotFound",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Reason::Required => "Required value",
            Reason::Invalid | Reason::TypeInvalid => "Invalid value",
            Reason::NotSupported => "Unsupported value",
            Reason::Forbidden => "Forbidden",
            Reason::Duplicate => "Duplicate value",
            Reason::TooLong => "Too long",
            Reason::TooMany => "Too many",
            Reason::NotFound => "Not found",
        }
    }
}

/// An error of one field. `Display` prints `field: body`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    /// The kind of error.
    pub(crate) reason: Reason,
    /// The path of the field, such as `spec.members[0].name`.
    pub(crate) field: String,
    /// The offending value; `None` leaves it out of the text.
    value: Option<Value>,
    detail: String,
}

impl FieldError {
    pub(crate) fn new(
        reason: Reason,
        field: impl Into<String>,
        value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        FieldError {
            reason,
            field: field.into(),
            value,
            detail: detail.into(),
        }
    }

    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Reason::Required, field, None, detail)
    }

    pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, field, Some(gofmt::sorted(&value.into())), detail)
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Reason::Forbidden, field, None, detail)
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: Value) -> Self {
        Self::new(Reason::Duplicate, field, Some(gofmt::sorted(&value)), "")
    }

    pub(crate) fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[String]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|v| gofmt::quote(v)).collect();
        Self::new(
            Reason::NotSupported,
            field,
            Some(value.into()),
            format!("supported values: {}", quoted.join(", ")),
        )
    }

    /// The text without the field: what a `Status` carries in `details.causes[].message`.
    pub(crate) fn body(&self) -> String {
        let title = self.reason.title();
        let mut text = match (&self.value, self.reason) {
            (
                Some(value),
                Reason::Invalid
                | Reason::TypeInvalid
                | Reason::NotSupported
                | Reason::Duplicate
                | Reason::TooMany
                | Reason::NotFound,
            ) => {
                format!("{title}: {}", gofmt::value(value))
            }
            _ => title.to_owned(),
        };
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    /// The entry of `details.causes`.
    pub(crate) fn cause(&self) -> Value {
        json!({ "reason": self.reason.as_str(), "message": self.body(), "field": self.field })
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Several errors in one sentence, as Kubernetes aggregates them: alone as it is, several as `[a, b]`, each text once.
pub(crate) fn aggregate(errors: &[FieldError]) -> String {
    let mut texts: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let text = error.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.len() {
        1 => texts.swap_remove(0),
        _ => format!("[{}]", texts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_follow_kubernetes() {
        let cases = [
            (FieldError::required("spec.size", ""), "spec.size: Required value"),
            (
                FieldError::invalid("spec.size", 9, "spec.size in body should be less than or equal to 7"),
                "spec.size: Invalid value: 9: spec.size in body should be less than or equal to 7",
            ),
            (
                FieldError::invalid("a", "x\"y", "no"),
                "a: Invalid value: \"x\\\"y\": no",
            ),
            (
                FieldError::not_supported("m", "x", &["a".into(), "b".into()]),
                "m: Unsupported value: \"x\": supported values: \"a\", \"b\"",
            ),
            (
                FieldError::duplicate("l[1]", json!({"name": "a"})),
                "l[1]: Duplicate value: {\"name\":\"a\"}",
            ),
            (FieldError::forbidden("x", "may not"), "x: Forbidden: may not"),
            (
                FieldError::new(Reason::Invalid, "spec", None, "no"),
                "spec: Invalid value: no",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn several_are_bracketed_and_printed_once() {
        let a = FieldError::required("a", "");
        let b = FieldError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&a)), "a: Required value");
        assert_eq!(aggregate(&[a.clone(), b, a]), "[a: Required value, b: Required value]");
    }
}
