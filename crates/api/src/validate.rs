//! What the schema cannot say.
