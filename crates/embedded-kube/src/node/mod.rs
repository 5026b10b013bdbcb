//! Nodes that run pods as ordinary processes.
#![allow(dead_code)] // while the parts are being joined

mod container;
mod directory;
mod dns;
mod environment;
mod events;
mod images;
mod logs;
mod machine;
mod network;
mod pod_state;
mod pod_worker;
mod probes;
mod process;
mod proxy;
mod sandbox;
mod sources;
mod status;
mod volumes;

pub use images::{Image, ImageSource};
