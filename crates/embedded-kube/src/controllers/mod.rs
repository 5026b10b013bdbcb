//! The controllers that turn objects into other objects. Each speaks only the Kubernetes API.
