//! A part of this process that has a place of its own in the cluster's network, as a pod has.

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::plane::Place;

/// Threads that live at an address of their own in the cluster's network. What runs here meets services, cuts and refusals as
/// a program in a pod does. Dropping it ends what runs here at its next await.
pub struct Guest {
    address: Ipv4Addr,
    runtime: Option<Runtime>,
    _place: Place,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Guest {
    pub(crate) fn new(address: Ipv4Addr, place: Place) -> io::Result<Self> {
        let namespace = place.namespace.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("guest")
            .enable_all()
            // A thread that cannot go there must not open sockets elsewhere.
            .on_thread_start(move || namespace.enter().expect("a thread enters its network namespace"))
            .build()?;
        Ok(Self {
            address,
            runtime: Some(runtime),
            _place: place,
        })
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Runs something there.
    pub fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.as_ref().expect("it is there until dropped").spawn(work)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
