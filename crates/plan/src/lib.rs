//! The pure planners.
