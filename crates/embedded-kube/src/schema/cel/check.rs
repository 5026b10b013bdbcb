//! Checks of a rule without running it: names and functions that do not exist.
//!
//! The CEL crate has no type checker. Kubernetes rejects a definition whose rule selects a field that the schema does
//! not have, which is the usual mistake; so selections are followed through the schema as far as types are known. The
//! rest is left to evaluation.

use std::collections::HashMap;

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::library;
use super::values::escape;
use crate::schema::structural::{Additional, Schema};

/// A finding: the node and Kubernetes' text.
pub(super) struct Finding {
    pub(super) node: u64,
    pub(super) text: String,
}

/// Findings for an expression over `self` (and `oldSelf`) of the given schema, and the type of its value where it is
/// known.
pub(super) fn check(
    expression: &IdedExpr,
    schema: &Schema,
    root: bool,
    optional_old_self: bool,
) -> (Vec<Finding>, Option<String>) {
    let mut checker = Checker {
        schema,
        root,
        optional_old_self,
        scope: HashMap::new(),
        findings: Vec::new(),
    };
    let known = checker.visit(expression);
    (checker.findings, known.type_name())
}

/// Whether the expression names `oldSelf`.
pub(super) fn uses_old_self(program: &cel::Program) -> bool {
    program.references().has_variable("oldSelf")
}

/// What is known about the value of an expression.
#[derive(Clone, Copy)]
enum Known<'a> {
    /// A value with this schema; `resource` when it has `metadata` of its own.
    Schema(&'a Schema, bool),
    Metadata,
    /// A value of this type of CEL.
    Type(&'static str),
    Anything,
}

impl Known<'_> {
    fn type_name(self) -> Option<String> {
        match self {
            Known::Type(name) => Some(name.to_owned()),
            Known::Schema(schema, _) if !schema.kind.is_empty() && !schema.nullable => Some(cel_type(schema)),
            _ => None,
        }
    }
}

struct Checker<'a> {
    schema: &'a Schema,
    root: bool,
    optional_old_self: bool,
    scope: HashMap<String, Vec<Known<'a>>>,
    findings: Vec<Finding>,
}

impl<'a> Checker<'a> {
    fn find(&mut self, node: u64, text: String) {
        self.findings.push(Finding { node, text });
    }

    fn visit(&mut self, node: &IdedExpr) -> Known<'a> {
        match &node.expr {
            Expr::Ident(name) => self.ident(node.id, name),
            Expr::Select(select) => {
                let operand = self.visit(&select.operand);
                let field = self.select(node.id, operand, &select.field);
                // `has(a.b)` is a selection that tests.
                if select.test { Known::Type("bool") } else { field }
            }
            Expr::Call(call) => self.call(node.id, call),
            Expr::Comprehension(c) => {
                let range = self.visit(&c.iter_range);
                let (first, second) = match range {
                    Known::Schema(schema, _) if schema.kind == "array" => {
                        let item = schema.items.as_deref().map_or(Known::Anything, of);
                        // With two variables the first is the index.
                        if c.iter_var2.is_some() {
                            (Known::Anything, item)
                        } else {
                            (item, Known::Anything)
                        }
                    }
                    Known::Schema(
                        Schema {
                            additional: Some(Additional::Schema(value)),
                            ..
                        },
                        _,
                    ) => (Known::Anything, of(value)),
                    _ => (Known::Anything, Known::Anything),
                };
                let init = self.visit(&c.accu_init);
                let second_name = c.iter_var2.clone();
                self.push(&c.iter_var, first);
                if let Some(name) = &second_name {
                    self.push(name, second);
                }
                self.push(&c.accu_var, init);
                self.visit(&c.loop_cond);
                self.visit(&c.loop_step);
                let result = self.visit(&c.result);
                self.pop(&c.accu_var);
                if let Some(name) = &second_name {
                    self.pop(name);
                }
                self.pop(&c.iter_var);
                result
            }
            Expr::List(list) => {
                list.elements.iter().for_each(|e| {
                    self.visit(e);
                });
                Known::Anything
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key);
                        self.visit(&entry.value);
                    }
                }
                Known::Anything
            }
            Expr::Struct(object) => {
                self.find(
                    node.id,
                    format!("undeclared reference to '{}' (in container '')", object.type_name),
                );
                Known::Anything
            }
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Known::Type("bool"),
                LiteralValue::Bytes(_) => Known::Type("bytes"),
                LiteralValue::Double(_) => Known::Type("double"),
                LiteralValue::Int(_) => Known::Type("int"),
                LiteralValue::String(_) => Known::Type("string"),
                LiteralValue::UInt(_) => Known::Type("uint"),
                LiteralValue::Null => Known::Anything,
            },
            Expr::Unspecified => Known::Anything,
        }
    }

    fn ident(&mut self, node: u64, name: &str) -> Known<'a> {
        if let Some(known) = self.scope.get(name).and_then(|s| s.last()) {
            return *known;
        }
        match name {
            "self" => Known::Schema(self.schema, self.root),
            "oldSelf" if self.optional_old_self => Known::Anything,
            "oldSelf" => Known::Schema(self.schema, self.root),
            "bool" | "bytes" | "double" | "int" | "list" | "map" | "null_type" | "string" | "type" | "uint" => {
                Known::Anything
            }
            "optional_type" | "google" => Known::Anything,
            // The parser generates some names that the author did not write.
            name if name.starts_with(['@', '#']) || name.starts_with("__") => Known::Anything,
            name => {
                self.find(node, format!("undeclared reference to '{name}' (in container '')"));
                Known::Anything
            }
        }
    }

    fn select(&mut self, node: u64, operand: Known<'a>, field: &str) -> Known<'a> {
        match operand {
            Known::Anything => Known::Anything,
            Known::Type(name) => {
                self.find(node, format!("type '{name}' does not support field selection"));
                Known::Anything
            }
            Known::Metadata => {
                if !matches!(field, "name" | "generateName") {
                    self.find(node, format!("undefined field '{field}'"));
                }
                Known::Anything
            }
            Known::Schema(schema, resource) => {
                if resource || schema.embedded_resource {
                    match field {
                        "apiVersion" | "kind" => return Known::Anything,
                        "metadata" => return Known::Metadata,
                        _ => {}
                    }
                }
                if let Some((_, property)) = schema.properties.iter().find(|(name, _)| escape(name) == field) {
                    return of(property);
                }
                match &schema.additional {
                    Some(Additional::Schema(value)) => return of(value),
                    Some(_) => return Known::Anything,
                    None => {}
                }
                let scalar = !matches!(schema.kind.as_str(), "object" | "");
                if schema.int_or_string {
                    return Known::Anything;
                }
                if scalar {
                    self.find(
                        node,
                        format!("type '{}' does not support field selection", cel_type(schema)),
                    );
                } else {
                    self.find(node, format!("undefined field '{field}'"));
                }
                Known::Anything
            }
        }
    }

    fn call(&mut self, node: u64, call: &CallExpr) -> Known<'a> {
        // A qualified function, `sets.contains(a, b)`, is parsed as a call on the name `sets`.
        if let Some(target) = &call.target
            && let Expr::Ident(namespace) = &target.expr
            && library::knows(&format!("{namespace}.{}", call.func_name))
        {
            call.args.iter().for_each(|arg| {
                self.visit(arg);
            });
            return Known::Anything;
        }
        let target = call.target.as_ref().map(|t| self.visit(t));
        let args: Vec<Known<'a>> = call.args.iter().map(|arg| self.visit(arg)).collect();
        if !library::knows(&call.func_name) {
            self.find(
                node,
                format!("undeclared reference to '{}' (in container '')", call.func_name),
            );
        }
        match (call.func_name.as_str(), target, args.as_slice()) {
            (operators::INDEX, None, [Known::Schema(schema, _), _]) => match (&schema.items, &schema.additional) {
                (Some(items), _) => of(items),
                (None, Some(Additional::Schema(value))) => of(value),
                _ => Known::Anything,
            },
            (operators::CONDITIONAL, None, [_, yes, _]) => *yes,
            (
                operators::EQUALS
                | operators::NOT_EQUALS
                | operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS,
                None,
                [a, b],
            ) => {
                self.comparable(node, &call.func_name, *a, *b);
                Known::Type("bool")
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT | operators::IN, None, _) => {
                Known::Type("bool")
            }
            ("contains" | "startsWith" | "endsWith" | "matches", Some(_), _) => Known::Type("bool"),
            ("size", _, _) => Known::Type("int"),
            ("string", None, _) => Known::Type("string"),
            _ => Known::Anything,
        }
    }

    /// Rejects comparisons of values that can never be equal: strings with numbers, booleans with strings.
    fn comparable(&mut self, node: u64, operator: &str, a: Known<'a>, b: Known<'a>) {
        let (Some(a), Some(b)) = (a.type_name(), b.type_name()) else {
            return;
        };
        let scalar = |t: &str| matches!(t, "string" | "bool" | "int" | "uint" | "double");
        let number = |t: &str| matches!(t, "int" | "uint" | "double");
        if a != b && scalar(&a) && scalar(&b) && !(number(&a) && number(&b)) {
            self.find(
                node,
                format!("found no matching overload for '{operator}' applied to '({a}, {b})'"),
            );
        }
    }

    fn push(&mut self, name: &str, known: Known<'a>) {
        self.scope.entry(name.to_owned()).or_default().push(known);
    }

    fn pop(&mut self, name: &str) {
        if let Some(stack) = self.scope.get_mut(name) {
            stack.pop();
            if stack.is_empty() {
                self.scope.remove(name);
            }
        }
    }
}

fn of(schema: &Schema) -> Known<'_> {
    if schema.int_or_string {
        Known::Anything
    } else {
        Known::Schema(schema, false)
    }
}

/// CEL's name of a schema's type.
pub(super) fn cel_type(schema: &Schema) -> String {
    match (schema.kind.as_str(), schema.format.as_str()) {
        ("string", "byte") => "bytes".to_owned(),
        ("string", "date" | "date-time") => "timestamp".to_owned(),
        ("string", "duration") => "duration".to_owned(),
        ("integer", _) => "int".to_owned(),
        ("number", _) => "double".to_owned(),
        ("boolean", _) => "bool".to_owned(),
        ("array", _) => format!("list({})", schema.items.as_deref().map_or("dyn".to_owned(), cel_type)),
        ("", _) => "dyn".to_owned(),
        (kind, _) => kind.to_owned(),
    }
}
