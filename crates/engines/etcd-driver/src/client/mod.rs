//! The wire side of etcd: membership, status, alarms, care and snapshots, over gRPC. It touches nothing but the network.
//!
//! The client is our own and small, on tonic and prost with messages written by hand ([`messages`]): the `etcd-client`
//! crate needs `protoc` to build, lacks the downgrade call, and dials the name that it verifies. We dial a pod's address
//! at once, before DNS knows it, and verify the name that the member's certificate carries.
//!
//! Servers from 3.2 to 3.7 are spoken to. What an old server does not know it leaves empty; what a new one adds is skipped.

mod aside;
mod ask;
mod bolt;
mod calls;
mod connection;
mod error;
mod handshake;
pub mod messages;
mod shown;
mod snapshot;
mod verify;
mod version;

pub use aside::Aside;
pub use ask::{Asked, ask, hash_of_data, prove_list};
pub use bolt::{BoltError, Checker, Opened};
pub use calls::{Client, Downgrade};
pub use connection::{Timeouts, Tls, TlsError};
pub use error::{Error, Result};
pub use shown::shown_certificate;
pub use snapshot::{Passing, SnapshotError, Sound, Whole, hex, verified};
