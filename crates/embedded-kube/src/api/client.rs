//! The in-memory client: `kube::Client` straight into the server, without sockets or TLS.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};

use super::auth::User;
use super::body::Body;
use super::server::Server;

#[derive(Clone)]
struct InMemory {
    server: Arc<Server>,
    user: Arc<User>,
}

impl tower::Service<Request<kube::client::Body>> for InMemory {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let (server, user) = (self.server.clone(), self.user.clone());
        async move { Ok(server.handle(request, Some(user)).await) }.boxed()
    }
}

/// A client that acts as `user`.
pub(crate) fn in_memory(server: Arc<Server>, user: User) -> kube::Client {
    kube::Client::new(
        InMemory {
            server,
            user: Arc::new(user),
        },
        "default",
    )
}
