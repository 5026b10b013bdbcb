//! Where backups live: S3 and what speaks its protocol, Azure, Google, OSS and a folder, behind one interface on the
//! `object_store` crate. It touches the network, the folder of a `file` store and the mounted secrets; it knows nothing
//! of Kubernetes and little of etcd.
//!
//! - [`Store`] opens a place and puts, gets, lists and deletes files in bounded memory. An upload that breaks off leaves
//!   nothing that looks like a file.
//! - [`pack`] and [`unpack`] compress and encrypt as a stream; what is not packed stays byte for byte as etcd wrote it.
//! - [`names`] says what files are called, [`retention`] which of them may go. Both are pure.

mod credentials;
mod crypt;
mod error;
mod folder;
mod handle;
pub mod names;
mod open;
mod packing;
pub mod retention;
mod roots;
mod upload;

pub use crypt::{Key, KeyError};
pub use error::{Error, Reason};
pub use handle::{Entry, PutError, Store};
pub use packing::{Packing, UnpackError, is_packed, pack, unpack};
