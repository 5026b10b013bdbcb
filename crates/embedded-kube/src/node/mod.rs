//! Nodes: pods as ordinary processes.
