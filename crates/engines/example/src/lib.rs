//! A complete small engine: a Mirror is a primary with copies of a file, and each copy must fetch the file before it serves.
//!
//! `docs/writing-an-engine.md` explains it step by step. A real engine has its pure part and its driver in crates of their own,
//! so that the compiler proves the purity of the first.

pub mod api;
pub mod driver;
pub mod plan;
#[cfg(test)]
mod sim;
