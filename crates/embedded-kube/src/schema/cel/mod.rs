//! `x-kubernetes-validations`: rules in CEL, compiled once per version of a definition and run on every write.
//!
//! Known differences from Kubernetes: rules have no cost limit, types are checked only as far as [`check`] follows them
//! (the rest fails when the rule runs), and lists of type `set` and `map` compare in order.

mod check;
mod library;
mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use cel::common::types::CelOptional;
use cel::common::value::Val;
use cel::{Context, Env, ExecutionError, Program, Value as Cel};
use serde_json::Value;

use super::correlate;
use super::error::{FieldError, Reason};
use super::structural::{Additional, Rule, Schema};

/// The compiled rules of a schema, in a tree like the schema's; nodes without rules below them are left out.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    here: Vec<Compiled>,
    fields: Vec<(String, Rules)>,
    values: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
}

#[derive(Debug)]
struct Compiled {
    rule: Rule,
    program: Program,
    message: Option<Program>,
    uses_old_self: bool,
    field_path: String,
}

fn environment() -> &'static Arc<Env> {
    static ENVIRONMENT: OnceLock<Arc<Env>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| Arc::new(library::environment().unwrap_or_else(|_| Env::stdlib())))
}

/// Compiles the rules of a schema whose path in the definition is `path` (see [`super::crd_check::schemas`]).
pub(crate) fn compile(schema: &Schema, path: &str) -> Result<Rules, Vec<FieldError>> {
    let mut errors = Vec::new();
    let rules = compile_node(schema, path, true, None, &mut errors);
    if errors.is_empty() { Ok(rules) } else { Err(errors) }
}

fn compile_node(schema: &Schema, path: &str, root: bool, lost: Option<&str>, errors: &mut Vec<FieldError>) -> Rules {
    let mut rules = Rules::default();
    for (i, rule) in schema
        .rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| !rule.rule.trim().is_empty())
    {
        let at = format!("{path}.x-kubernetes-validations[{i}]");
        rules.here.extend(compile_rule(schema, rule, &at, root, lost, errors));
    }
    for (name, field) in &schema.properties {
        let below = compile_node(field, &format!("{path}.properties[{name}]"), false, lost, errors);
        if !below.is_empty() {
            rules.fields.push((name.clone(), below));
        }
    }
    if let Some(Additional::Schema(value)) = &schema.additional {
        let below = compile_node(value, &format!("{path}.additionalProperties"), false, lost, errors);
        rules.values = (!below.is_empty()).then(|| Box::new(below));
    }
    if let Some(items) = &schema.items {
        // Only items of lists of type `map` can be matched with their old values.
        let lost = lost.or((schema.list_type != super::structural::ListType::Map).then_some(path));
        let below = compile_node(items, &format!("{path}.items"), false, lost, errors);
        rules.items = (!below.is_empty()).then(|| Box::new(below));
    }
    rules
}

fn compile_rule(
    schema: &Schema,
    rule: &Rule,
    at: &str,
    root: bool,
    lost: Option<&str>,
    errors: &mut Vec<FieldError>,
) -> Option<Compiled> {
    let mut reject = |key: &str, text: String| {
        errors.push(FieldError::new(
            Reason::Invalid,
            format!("{at}.{key}"),
            Some(written(rule)),
            text,
        ));
        None
    };
    let program = match compile_expression(&rule.rule, schema, root, rule.optional_old_self, "bool") {
        Ok(program) => program,
        Err(text) => return reject("rule", text),
    };
    let message = match rule.message_expression.trim() {
        "" => None,
        source => match compile_expression(source, schema, root, rule.optional_old_self, "string") {
            Ok(program) => Some(program),
            Err(text) => return reject("messageExpression", format!("messageExpression {text}")),
        },
    };
    let uses_old_self = check::uses_old_self(&program);
    if uses_old_self && let Some(lost) = lost {
        let text = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {lost}");
        errors.push(FieldError::invalid(format!("{at}.rule"), rule.rule.as_str(), text));
        return None;
    }
    if !uses_old_self && rule.source.get("optionalOldSelf").is_some() {
        let text = "may not be set if oldSelf is not used in rule";
        errors.push(FieldError::invalid(
            format!("{at}.optionalOldSelf"),
            rule.optional_old_self,
            text,
        ));
        return None;
    }
    let Some(field_path) = field_path(&rule.field_path, schema) else {
        let text = "must be a valid path";
        errors.push(FieldError::invalid(
            format!("{at}.fieldPath"),
            rule.field_path.as_str(),
            text,
        ));
        return None;
    };
    Some(Compiled {
        rule: rule.clone(),
        program,
        message,
        uses_old_self,
        field_path,
    })
}

/// The rule as Kubernetes prints it in an error: its Go struct as JSON.
fn written(rule: &Rule) -> Value {
    let mut out = serde_json::Map::new();
    out.insert("Rule".into(), rule.rule.as_str().into());
    out.insert("Message".into(), rule.message.as_str().into());
    out.insert("MessageExpression".into(), rule.message_expression.as_str().into());
    out.insert(
        "Reason".into(),
        rule.source.get("reason").cloned().unwrap_or(Value::Null),
    );
    out.insert("FieldPath".into(), rule.field_path.as_str().into());
    out.insert(
        "OptionalOldSelf".into(),
        rule.source.get("optionalOldSelf").cloned().unwrap_or(Value::Null),
    );
    Value::Object(out)
}

fn compile_expression(
    source: &str,
    schema: &Schema,
    root: bool,
    optional: bool,
    wanted: &str,
) -> Result<Program, String> {
    // The parser is generated code and reads user input; a panic in it must not stop the server.
    let parsed = catch_unwind(AssertUnwindSafe(|| environment().compile(source)));
    let program = match parsed {
        Err(_) => return Err("compilation failed: the expression cannot be parsed".to_owned()),
        Ok(Err(errors)) => {
            let errors = errors.to_string().replace("\n| ", "\n | ");
            return Err(format!("compilation failed: {}", errors.trim()));
        }
        Ok(Ok(program)) => program,
    };
    let (findings, kind) = check::check(program.expression(), schema, root, optional);
    if findings.is_empty() {
        return match kind {
            Some(kind) if kind != wanted => {
                let what = if wanted == "bool" {
                    "cel expression must evaluate to a bool"
                } else {
                    "must evaluate to a string"
                };
                Err(what.to_owned())
            }
            _ => Ok(program),
        };
    }
    let texts: Vec<String> = findings
        .iter()
        .map(|finding| located(source, program.source_info(), finding.node, &finding.text))
        .collect();
    Err(format!("compilation failed: {}", texts.join("\n")))
}

/// An error with its place, in the form of cel-go.
fn located(source: &str, info: &cel::common::ast::SourceInfo, node: u64, text: &str) -> String {
    let offset = info.offset_for(node).map_or(0, |(start, _)| start as usize);
    let before = source.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count());
    let shown = source.split('\n').nth(line).unwrap_or_default();
    format!(
        "ERROR: <input>:{}:{}: {text}\n | {shown}\n | {}^",
        line + 1,
        column + 1,
        ".".repeat(column)
    )
}

/// `.spec.size` and `['a-b'].c` as paths of field errors. `None` when the schema has no such field.
fn field_path(path: &str, schema: &Schema) -> Option<String> {
    let mut out = String::new();
    let mut node = schema;
    let mut rest = path.trim();
    while !rest.is_empty() {
        let (name, after, map_key) = if let Some(quoted) = rest.strip_prefix("['") {
            let end = quoted.find("']")?;
            (&quoted[..end], &quoted[end + 2..], true)
        } else {
            let name = rest.strip_prefix('.')?;
            let end = name.find(['.', '[']).unwrap_or(name.len());
            (&name[..end], &name[end..], false)
        };
        let property = node.properties.contains_key(name);
        node = node.field(name)?;
        if map_key && !property {
            out.push_str(&format!("[{name}]"));
        } else {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(name);
        }
        rest = after;
    }
    Some(out)
}

impl Rules {
    /// Whether there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.here.is_empty() && self.fields.is_empty() && self.values.is_none() && self.items.is_none()
    }

    /// Runs all rules on an object; `old` is the stored object on update.
    pub(crate) fn validate(&self, object: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.node(object, old, schema, "", old == Some(object), &mut errors);
        errors
    }

    fn node(
        &self,
        value: &Value,
        old: Option<&Value>,
        schema: &Schema,
        path: &str,
        unchanged: bool,
        errors: &mut Vec<FieldError>,
    ) {
        // Rules apply to values, not to absent ones: the parent's rules decide about null.
        if value.is_null() {
            return;
        }
        let old = old.filter(|o| !o.is_null());
        if !self.here.is_empty() {
            let this = values::to_cel(value, Some(schema));
            let before = old.map(|o| values::to_cel(o, Some(schema)));
            for rule in &self.here {
                errors.extend(rule.run(value, &this, before.as_ref(), schema, path, unchanged));
            }
        }
        match value {
            Value::Object(map) => {
                for (name, rules) in &self.fields {
                    if let (Some(value), Some(field)) = (map.get(name), schema.properties.get(name)) {
                        let old = old.and_then(|o| o.get(name));
                        let path = if path.is_empty() {
                            name.clone()
                        } else {
                            format!("{path}.{name}")
                        };
                        rules.node(value, old, field, &path, old == Some(value), errors);
                    }
                }
                if let (Some(rules), Some(Additional::Schema(field))) = (&self.values, &schema.additional) {
                    for (name, value) in map.iter().filter(|(name, _)| !schema.properties.contains_key(*name)) {
                        let old = old.and_then(|o| o.get(name));
                        rules.node(
                            value,
                            old,
                            field,
                            &format!("{path}[{name}]"),
                            old == Some(value),
                            errors,
                        );
                    }
                }
            }
            Value::Array(items) => {
                if let (Some(rules), Some(item_schema)) = (&self.items, &schema.items) {
                    for (index, item) in items.iter().enumerate() {
                        let old_item = correlate::item(old, item, schema);
                        let unchanged = unchanged || old_item == Some(item);
                        rules.node(
                            item,
                            old_item,
                            item_schema,
                            &format!("{path}[{index}]"),
                            unchanged,
                            errors,
                        );
                    }
                }
            }
            _ => {}
        }
    }
}

impl Compiled {
    fn run(
        &self,
        value: &Value,
        this: &Cel,
        before: Option<&Cel>,
        schema: &Schema,
        path: &str,
        unchanged: bool,
    ) -> Option<FieldError> {
        // Transition rules need an old value; unchanged values cause no errors.
        if (self.uses_old_self && before.is_none() && !self.rule.optional_old_self)
            || (!self.uses_old_self && unchanged)
        {
            return None;
        }
        let field = if path.is_empty() { "<nil>" } else { path };
        let name = |text: &str| if text.is_empty() { "".into() } else { Value::from(text) };
        let named = match self.rule.message.trim() {
            "" => self.rule.rule.trim(),
            message => message,
        };
        match self.evaluate(&self.program, this, before) {
            Ok(Cel::Bool(true)) => None,
            Ok(Cel::Bool(false)) => Some(self.violation(value, this, before, schema, path)),
            Ok(_) => Some(FieldError::invalid(
                field,
                name(&schema.kind),
                format!("cel expression must evaluate to a bool for rule: {named}"),
            )),
            Err(Failure::NoOverload) => Some(FieldError::invalid(
                field,
                name(&schema.kind),
                format!(
                    "'no such overload': call arguments did not match a supported operator, function or macro signature for rule: {named}"
                ),
            )),
            Err(Failure::Other(text)) => Some(FieldError::invalid(
                field,
                name(&schema.kind),
                format!("{text} evaluating rule: {named}"),
            )),
        }
    }

    fn violation(&self, value: &Value, this: &Cel, before: Option<&Cel>, schema: &Schema, path: &str) -> FieldError {
        let from_expression = self
            .message
            .as_ref()
            .and_then(|program| match self.evaluate(program, this, before) {
                Ok(Cel::String(text)) if !text.trim().is_empty() && !text.contains('\n') => {
                    Some(text.trim().to_owned())
                }
                _ => None,
            });
        let detail = from_expression.unwrap_or_else(|| match self.rule.message.trim() {
            "" => format!("failed rule: {}", self.rule.rule.trim()),
            message => message.to_owned(),
        });
        let field = match (path, self.field_path.as_str()) {
            ("", "") => "<nil>".to_owned(),
            ("", field) => field.to_owned(),
            (path, "") => path.to_owned(),
            (path, field) => format!("{path}.{field}"),
        };
        let shown = (!matches!(schema.kind.as_str(), "object" | "array")).then(|| value.clone());
        match self.rule.reason.as_deref() {
            Some("FieldValueForbidden") => FieldError::forbidden(field, detail),
            Some("FieldValueRequired") => FieldError::required(field, detail),
            Some("FieldValueDuplicate") => FieldError::new(Reason::Duplicate, field, shown, ""),
            _ => FieldError::new(Reason::Invalid, field, shown, detail),
        }
    }

    fn evaluate(&self, program: &Program, this: &Cel, before: Option<&Cel>) -> Result<Cel, Failure> {
        let mut context = Context::with_env(Arc::clone(environment()));
        context.add_variable_from_value("self", this.clone());
        if self.rule.optional_old_self {
            let inner: Option<Box<dyn Val>> = match before {
                Some(before) => Some(before.clone().try_into().map_err(Failure::from)?),
                None => None,
            };
            context.add_variable_as_val("oldSelf", Box::new(CelOptional::from(inner)));
        } else if let Some(before) = before {
            context.add_variable_from_value("oldSelf", before.clone());
        }
        match catch_unwind(AssertUnwindSafe(|| program.execute(&context))) {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::Other("internal error of the CEL interpreter".to_owned())),
        }
    }
}

enum Failure {
    NoOverload,
    Other(String),
}

impl From<ExecutionError> for Failure {
    fn from(error: ExecutionError) -> Failure {
        match error {
            ExecutionError::NoSuchOverload(_)
            | ExecutionError::ValuesNotComparable(..)
            | ExecutionError::UnexpectedType { .. }
            | ExecutionError::UnsupportedBinaryOperator(..) => Failure::NoOverload,
            ExecutionError::NoSuchKey(key) => Failure::Other(format!("no such key: {key}")),
            ExecutionError::IndexOutOfBounds(Cel::Int(index)) => {
                Failure::Other(format!("index out of bounds: {index}"))
            }
            ExecutionError::DivisionByZero(_) => Failure::Other("division by zero".to_owned()),
            ExecutionError::RemainderByZero(_) => Failure::Other("modulus by zero".to_owned()),
            ExecutionError::Overflow(..) => Failure::Other("integer overflow".to_owned()),
            ExecutionError::FunctionError { message, .. } => Failure::Other(message),
            other => Failure::Other(other.to_string()),
        }
    }
}
