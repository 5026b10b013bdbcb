//! The wire side of etcd.
