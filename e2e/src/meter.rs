//! Counts the operator's requests to the API server, and can kill the operator right after one of its writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use anyhow::Result;
use kube::client::Body;
use tokio::sync::Notify;

/// Counts requests, except those that renew the leader's lease.
#[derive(Default)]
pub(crate) struct Meter {
    writes: AtomicU64,
    reads: AtomicU64,
    watches: AtomicU64,
    /// The operator gets no response to this write (1: the next one) nor to any later request; 0: it gets all
    /// responses.
    last_write: AtomicI64,
    fell: Notify,
}

/// The counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// POST, PUT, PATCH and DELETE.
    pub(crate) writes: u64,
    /// GET and LIST.
    pub(crate) reads: u64,
    /// Watches that were opened.
    pub(crate) watches: u64,
}

impl Meter {
    pub(crate) fn count(&self) -> Count {
        Count {
            writes: self.writes.load(Ordering::SeqCst),
            reads: self.reads.load(Ordering::SeqCst),
            watches: self.watches.load(Ordering::SeqCst),
        }
    }

    /// Kills the operator after this many writes (0: never).
    pub(crate) fn fall_after(&self, writes: i64) {
        self.last_write.store(writes, Ordering::SeqCst);
    }

    /// Waits until that write has happened.
    pub(crate) async fn fell(&self) {
        self.fell.notified().await;
    }

    /// Wraps a client so that its requests are counted.
    pub(crate) fn on(self: &Arc<Self>, client: kube::Client) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let meter = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (meter, client) = (meter.clone(), client.clone());
            async move { meter.pass(client, request).await }
        });
        kube::Client::new(service, namespace)
    }

    async fn pass(&self, client: kube::Client, request: http::Request<Body>) -> kube::Result<http::Response<Body>> {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        let writes = request.method() != http::Method::GET;
        if path.contains("/leases") {
            return client.send(request).await;
        }
        let counter = match writes {
            true => &self.writes,
            false if query.contains("watch=true") || query.contains("watch=1") => &self.watches,
            false => &self.reads,
        };
        counter.fetch_add(1, Ordering::SeqCst);
        // Events are not counted: the operator does not wait for them, so a crash after one is like a crash a moment
        // later.
        let is_step = writes && !path.ends_with("/events");
        let answer = client.send(request).await;
        if is_step && self.last_write.load(Ordering::SeqCst) > 0 && self.last_write.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.fell.notify_one();
            std::future::pending::<()>().await;
        }
        answer
    }
}

/// Checks that nothing but watches happened between two counts.
pub(crate) fn quiet(before: Count, after: Count) -> Result<()> {
    anyhow::ensure!(
        before.writes == after.writes,
        "{} writes to the API",
        after.writes - before.writes
    );
    anyhow::ensure!(
        before.reads == after.reads,
        "{} reads beside the watches",
        after.reads - before.reads
    );
    Ok(())
}
