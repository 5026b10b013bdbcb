//! The schemas of built-in types, as k8s-openapi defines them (with descriptions), in one generator. They are large and
//! rarely needed, so they are built on demand and dropped afterwards.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

/// Collects definitions; a type's name is its OpenAPI name, `io.k8s.api.core.v1.Pod`.
pub(crate) struct Definitions(SchemaGenerator);

impl Definitions {
    pub(crate) fn new() -> Definitions {
        let mut settings = SchemaSettings::draft07();
        settings.meta_schema = None;
        settings.transforms = Vec::new();
        Definitions(SchemaGenerator::new(settings))
    }

    /// Adds a type and everything it refers to.
    pub(crate) fn add<T: JsonSchema>(&mut self) {
        let _: Schema = self.0.subschema_for::<T>();
    }

    /// All of them by name; references read `#/definitions/<name>`.
    pub(crate) fn into_map(mut self) -> Map<String, Value> {
        self.0.take_definitions(false)
    }
}
