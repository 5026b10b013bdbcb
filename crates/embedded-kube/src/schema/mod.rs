//! Pure functions over JSON objects. No I/O, no clocks. `api/` calls them; entry points:
//!
//! Custom resources:
//! - [`crd_check::check`]: what is wrong with a CustomResourceDefinition, CEL rules aside (names defaulted before)
//! - [`crd_check::schemas`] gives each schema of a definition with its path; [`custom::CustomKind::new`] parses and
//!   compiles one, once per version (then `.with_subresources(version.subresources)`): its errors are those of CEL
//!   rules and belong to the same error
//! - [`builtin::check_metadata`], then [`custom::CustomKind::admit`]: prune and default an object, gives the unknown fields; then
//!   [`custom::CustomKind::validate`] (or `validate_status` for the status subresource): schema, list types, CEL
//!
//! Patches and ownership:
//! - [`strategic::patch`]: strategic merge patch of built-in kinds (custom kinds answer 415)
//! - [`apply::apply`]: server-side apply; [`apply::track`]: `managedFields` after create, update and other patches. Both
//!   take an [`apply::Kind`] (built-in by name, custom by schema) and an [`apply::Writer`]. Call `track` last before
//!   storing, on the object as it will be stored; after `apply` admit and validate as on any write. Where an apply
//!   changed nothing but times, nothing need be stored.
//!
//! Tables: [`table::table`] with [`table::Columns`] (`BuiltIn(kind)`, or `custom(additionalPrinterColumns)` once per
//! version); [`table::jsonpath::Path`] also serves the scale subresource's paths.
//!
//! Built-in kinds: [`builtin::decode`] (gives the object and its unknown fields; the error is a 400's message) and
//! [`builtin::strict_error`].
//!
//! OpenAPI: [`openapi::v2_json`], [`openapi::v3_index`], [`openapi::v3`]: each builds bytes; keep them until a definition
//! changes.
//!
//! Errors: [`error::FieldError`]: `Display` for messages, `cause()` for `details.causes`, [`error::aggregate`] for the
//! text of a 422 (`Kind.group "name" is invalid: <aggregate>`).

// The API server wires these one by one.

pub(crate) mod apply;
pub(crate) mod builtin;
pub(crate) mod cel;
pub(crate) mod correlate;
pub(crate) mod crd_check;
pub(crate) mod custom;
pub(crate) mod default;
pub(crate) mod definitions;
pub(crate) mod error;
pub(crate) mod formats;
#[cfg(test)]
mod fuzz;
pub(crate) mod gofmt;
pub(crate) mod merge_keys;
pub(crate) mod openapi;
pub(crate) mod prune;
pub(crate) mod quantity;
pub(crate) mod strategic;
pub(crate) mod structural;
pub(crate) mod table;
pub(crate) mod validate;
