//! Sets of fields, and their form in `managedFields` (FieldsV1): `f:` a field, `k:` a list item by its keys, `v:` an
//! item by its value, `i:` by its index, `.` the thing itself beside what is below it.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::schema::gofmt;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Field(String),
    /// Keys and values as JSON with sorted keys, so that equal ones are equal texts.
    Key(String),
    Value(String),
    Index(usize),
}

impl Step {
    pub(super) fn key(keys: Map<String, Value>) -> Step {
        Step::Key(gofmt::sorted(&Value::Object(keys)).to_string())
    }

    pub(super) fn value(value: &Value) -> Step {
        Step::Value(gofmt::sorted(value).to_string())
    }

    fn parse(text: &str) -> Option<Step> {
        let (kind, rest) = text.split_once(':')?;
        let canonical = |text: &str| Some(gofmt::sorted(&serde_json::from_str(text).ok()?).to_string());
        Some(match kind {
            "f" => Step::Field(rest.to_owned()),
            "k" => Step::Key(canonical(rest)?),
            "v" => Step::Value(canonical(rest)?),
            "i" => Step::Index(rest.parse().ok()?),
            _ => return None,
        })
    }

    fn encode(&self) -> String {
        match self {
            Step::Field(name) => format!("f:{name}"),
            Step::Key(key) => format!("k:{key}"),
            Step::Value(value) => format!("v:{value}"),
            Step::Index(index) => format!("i:{index}"),
        }
    }

    /// As in messages: `.name`, `[name="a"]`, `[="x"]`, `[0]`.
    fn show(&self, out: &mut String) {
        let _ = match self {
            Step::Field(name) => write!(out, ".{name}"),
            Step::Key(key) => {
                let fields: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
                let fields: Vec<String> = fields.iter().map(|(k, v)| format!("{k}={v}")).collect();
                write!(out, "[{}]", fields.join(","))
            }
            Step::Value(value) => write!(out, "[={value}]"),
            Step::Index(index) => write!(out, "[{index}]"),
        };
    }
}

/// A set of fields, as a tree of steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Set {
    below: BTreeMap<Step, Entry>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Entry {
    member: bool,
    set: Set,
}

impl Set {
    pub(super) fn is_empty(&self) -> bool {
        self.below.values().all(|entry| !entry.member && entry.set.is_empty())
    }

    pub(super) fn insert(&mut self, path: &[Step]) {
        if let Some((first, rest)) = path.split_first() {
            let entry = self.below.entry(first.clone()).or_default();
            match rest {
                [] => entry.member = true,
                rest => entry.set.insert(rest),
            }
        }
    }

    pub(super) fn has(&self, step: &Step) -> bool {
        self.below.get(step).is_some_and(|entry| entry.member)
    }

    pub(super) fn under(&self, step: &Step) -> Option<&Set> {
        self.below
            .get(step)
            .map(|entry| &entry.set)
            .filter(|set| !set.is_empty())
    }

    pub(super) fn union(mut self, other: &Set) -> Set {
        for (step, theirs) in &other.below {
            let entry = self.below.entry(step.clone()).or_default();
            entry.member |= theirs.member;
            entry.set = std::mem::take(&mut entry.set).union(&theirs.set);
        }
        self
    }

    pub(super) fn difference(mut self, other: &Set) -> Set {
        for (step, theirs) in &other.below {
            if let Some(entry) = self.below.get_mut(step) {
                entry.member &= !theirs.member;
                entry.set = std::mem::take(&mut entry.set).difference(&theirs.set);
            }
        }
        self.below.retain(|_, entry| entry.member || !entry.set.is_empty());
        self
    }

    pub(super) fn intersection(&self, other: &Set) -> Set {
        let mut below = BTreeMap::new();
        for (step, ours) in &self.below {
            if let Some(theirs) = other.below.get(step) {
                let entry = Entry {
                    member: ours.member && theirs.member,
                    set: ours.set.intersection(&theirs.set),
                };
                if entry.member || !entry.set.is_empty() {
                    below.insert(step.clone(), entry);
                }
            }
        }
        Set { below }
    }

    /// Keeps the paths whose first step passes the test.
    pub(super) fn keep(mut self, test: impl Fn(&str) -> bool) -> Set {
        self.below
            .retain(|step, _| matches!(step, Step::Field(name) if test(name)));
        self
    }

    /// Every path of the set, in the form of messages.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        for (step, entry) in &self.below {
            let mut path = prefix.to_owned();
            step.show(&mut path);
            if entry.member {
                out.push(path.clone());
            }
            entry.set.collect(&path, out);
        }
    }

    /// Reads FieldsV1; unknown entries are left out.
    pub(super) fn decode(fields: &Value) -> Set {
        let mut set = Set::default();
        for (key, value) in fields.as_object().into_iter().flatten() {
            let Some(step) = Step::parse(key) else { continue };
            let below = Set::decode(value);
            let member = below.below.is_empty() || value.get(".").is_some();
            set.below.insert(step, Entry { member, set: below });
        }
        set
    }

    /// Writes FieldsV1.
    pub(super) fn encode(&self) -> Value {
        let mut out = Map::new();
        for (step, entry) in &self.below {
            let mut below = entry.set.encode();
            if entry.set.is_empty() {
                below = json!({});
            } else if entry.member
                && let Value::Object(map) = &mut below
            {
                map.insert(".".to_owned(), json!({}));
                map.sort_keys();
            }
            out.insert(step.encode(), below);
        }
        Value::Object(out)
    }

    /// With every named field on the way to a member a member too, `named` telling named fields from keys of maps.
    pub(super) fn with_parents(&self, place: super::place::Place<'_>) -> Set {
        let mut out = Set::default();
        for (step, entry) in &self.below {
            let (below, named) = match step {
                Step::Field(name) => {
                    let below = place.field(name);
                    let named = below.named;
                    (below, named)
                }
                _ => (place.item(), false),
            };
            let set = entry.set.with_parents(below);
            out.below.insert(
                step.clone(),
                Entry {
                    member: entry.member || named,
                    set,
                },
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_v1_reads_back_as_written() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {"f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}},
        });
        let set = Set::decode(&fields);
        assert_eq!(set.encode(), fields);
        assert_eq!(
            set.paths(),
            [
                ".metadata.finalizers",
                ".metadata.finalizers[=\"a/b\"]",
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.ports",
                ".spec.ports[port=80,protocol=\"TCP\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].port",
            ]
        );
        assert!(set.clone().difference(&set).is_empty());
        assert_eq!(set.intersection(&set), set);
    }
}
