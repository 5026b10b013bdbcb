//! A place in an object's type: what is one value, what merges, and by which keys. The same walk serves built-in kinds
//! (the table of [`crate::schema::merge_keys`]) and custom kinds (their schema).

use serde_json::{Map, Value};

use super::set::Step;
use crate::schema::merge_keys::Type;
use crate::schema::structural::{Additional, ListType, Schema};

/// The type of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    /// A built-in kind, by its name.
    BuiltIn(&'a str),
    /// A custom kind, by its schema.
    Custom(&'a Schema),
}

/// The type at one place.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    node: Node<'a>,
    /// A map that is one value.
    pub(super) atomic: bool,
    pub(super) list: List<'a>,
    /// A list whose items are one value each.
    atomic_items: bool,
    /// A field that the type declares, unlike a key of a map.
    pub(super) named: bool,
}

#[derive(Clone, Copy, Debug)]
enum Node<'a> {
    Root(&'a Schema),
    Schema(&'a Schema),
    Table(Type),
    /// Of no known type: maps merge, lists are one value.
    Unknown,
}

/// How a list merges.
#[derive(Clone, Copy, Debug)]
pub(super) enum List<'a> {
    Atomic,
    Set,
    Table(&'static [(&'static str, Option<&'static str>)]),
    Schema(&'a Schema),
}

impl<'a> Place<'a> {
    pub(super) fn root(kind: Kind<'a>) -> Place<'a> {
        let node = match kind {
            Kind::BuiltIn(name) => Node::Table(Type::of(name)),
            Kind::Custom(schema) => Node::Root(schema),
        };
        Place {
            node,
            atomic: false,
            list: List::Atomic,
            atomic_items: false,
            named: true,
        }
    }

    fn of_schema(schema: &'a Schema, named: bool) -> Place<'a> {
        let list = match schema.list_type {
            ListType::Atomic => List::Atomic,
            ListType::Set => List::Set,
            ListType::Map => List::Schema(schema),
        };
        Place {
            node: Node::Schema(schema),
            atomic: schema.atomic_map,
            list,
            atomic_items: false,
            named,
        }
    }

    fn unknown(named: bool) -> Place<'a> {
        Place {
            node: Node::Unknown,
            atomic: false,
            list: List::Atomic,
            atomic_items: false,
            named,
        }
    }

    pub(super) fn field(&self, name: &str) -> Place<'a> {
        match self.node {
            Node::Unknown => Place::unknown(false),
            Node::Table(kind) => {
                let (field, below) = kind.field(name);
                let list = match field {
                    Some(field) if field.set => List::Set,
                    Some(field) if !field.keys.is_empty() && !field.patch_only => List::Table(&field.keys),
                    _ => List::Atomic,
                };
                Place {
                    node: Node::Table(below),
                    atomic: field.is_some_and(|f| f.atomic),
                    list,
                    atomic_items: field.is_some_and(|f| f.atomic_items),
                    named: true,
                }
            }
            Node::Root(_) if name == "metadata" => {
                let node = Node::Table(Type::of("ObjectMeta"));
                Place {
                    node,
                    atomic: false,
                    list: List::Atomic,
                    atomic_items: false,
                    named: true,
                }
            }
            Node::Root(_) if matches!(name, "apiVersion" | "kind") => Place::unknown(true),
            Node::Root(schema) | Node::Schema(schema) => match (schema.properties.get(name), &schema.additional) {
                (Some(property), _) => Place::of_schema(property, true),
                (None, Some(Additional::Schema(value))) => Place::of_schema(value, false),
                (None, _) => Place::unknown(false),
            },
        }
    }

    /// Whether the type has a field of this name. Only schemas of custom kinds can tell.
    pub(super) fn declares(&self, name: &str) -> bool {
        match self.node {
            Node::Root(_) if matches!(name, "apiVersion" | "kind" | "metadata") => true,
            Node::Root(schema) | Node::Schema(schema) => {
                let open = schema.preserve_unknown_fields || schema.embedded_resource || schema.additional.is_some();
                open || schema.properties.is_empty() || schema.properties.contains_key(name)
            }
            Node::Table(_) | Node::Unknown => true,
        }
    }

    /// The type of the items of the list here.
    pub(super) fn item(&self) -> Place<'a> {
        match self.node {
            // The table's type of a list is that of its items.
            Node::Table(kind) => Place {
                node: Node::Table(kind),
                atomic: self.atomic_items,
                list: List::Atomic,
                atomic_items: false,
                named: false,
            },
            Node::Root(schema) | Node::Schema(schema) => match &schema.items {
                Some(items) => Place::of_schema(items, false),
                None => Place::unknown(false),
            },
            Node::Unknown => Place::unknown(false),
        }
    }

    /// Whether the value has parts that are owned one by one.
    pub(super) fn has_parts(&self, value: &Value) -> bool {
        match value {
            Value::Object(_) => !self.atomic,
            Value::Array(_) => !matches!(self.list, List::Atomic),
            _ => false,
        }
    }

    /// The step to an item of a list that merges.
    pub(super) fn step(&self, item: &Value) -> Result<Step, String> {
        let keyed: Vec<(&str, Option<Value>)> = match self.list {
            List::Atomic | List::Set => return Ok(Step::value(item)),
            List::Table(keys) => keys
                .iter()
                .map(|(name, default)| (*name, default.map(Value::from)))
                .collect(),
            List::Schema(schema) => schema
                .list_map_keys
                .iter()
                .map(|name| {
                    let property = schema.items.as_ref().and_then(|items| items.properties.get(name));
                    (name.as_str(), property.and_then(|p| p.default.clone()))
                })
                .collect(),
        };
        let Value::Object(fields) = item else {
            return Err(format!(
                "associative list with keys may not have non-map elements, got {item}"
            ));
        };
        let mut out = Map::new();
        for (name, default) in &keyed {
            if let Some(value) = fields.get(*name).cloned().or_else(|| default.clone()) {
                out.insert((*name).to_owned(), value);
            }
        }
        if out.is_empty() {
            let names: Vec<String> = keyed.iter().map(|(name, _)| format!("{name:?}")).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                names.join(" ")
            ));
        }
        Ok(Step::key(out))
    }
}
