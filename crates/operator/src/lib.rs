//! Observe, plan, carry out.
