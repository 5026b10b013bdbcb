//! Rules in the schema, as CEL.
