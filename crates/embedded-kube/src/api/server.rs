//! The server: its state, and how it handles a request.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::{self, Authenticator, User};
use super::body::{self, Body, full};
use super::errors::{Result, Status};
use super::network::Network;
use super::request::{Query, RequestInfo, ResourcePath};
use super::resources::{Registry, Resource};
use super::rest::present::Form;
use super::rest::{self, Call};
use super::store::Store;
use super::{bootstrap, crd, discovery, meta};
use crate::streams::PodStreams;

/// The state of one API server.
pub(crate) struct Server {
    pub(crate) store: Store,
    registry: ArcSwap<Registry>,
    /// Held while the registry is rebuilt, so that an older state never replaces a newer one.
    registry_change: Mutex<()>,
    /// The revision of the newest change of a definition.
    definitions: watch::Receiver<u64>,
    pub(crate) authenticator: Authenticator,
    pub(crate) network: Arc<Network>,
    /// Set once nodes run.
    pub(crate) streams: OnceLock<Arc<dyn PodStreams>>,
    pub(crate) stop: CancellationToken,
    /// Tasks that run beside the requests.
    pub(crate) tasks: TaskTracker,
}

impl Server {
    pub(crate) fn new(
        store: Store,
        authenticator: Authenticator,
        network: Arc<Network>,
        stop: CancellationToken,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        let definitions = store.log(crd::STORAGE).subscribe();
        let server = Arc::new(Self {
            store,
            registry: ArcSwap::default(),
            registry_change: Mutex::default(),
            definitions,
            authenticator,
            network,
            streams: OnceLock::new(),
            stop,
            tasks,
        });
        server.refresh_registry();
        server
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        let served = self.registry.load_full();
        // A client that received a definition in a watch finds its kind served, even before its writer has its
        // response.
        if served.as_of >= *self.definitions.borrow() {
            return served;
        }
        self.refresh_registry();
        self.registry.load_full()
    }

    /// Rebuilds the table of served resources from the stored definitions.
    fn refresh_registry(&self) {
        let _held = self.registry_change.lock().unwrap_or_else(|e| e.into_inner());
        if self.registry.load().as_of >= *self.definitions.borrow() {
            return;
        }
        let snapshot = self.store.snapshot();
        let custom = crd::resources(snapshot.list(crd::STORAGE, "", None).map(|(_, object)| &object.value));
        let resources = super::resources::built_in().into_iter().chain(custom);
        self.registry
            .store(Arc::new(Registry::new(resources, snapshot.revision)));
    }

    /// Continues what an earlier run of the process left unfinished.
    pub(crate) fn resume(self: &Arc<Self>) {
        for (_, definition) in self.store.snapshot().list(crd::STORAGE, "", None) {
            if meta::is_deleting(&definition.value) {
                self.tasks
                    .spawn(crd::clean_up(self.clone(), meta::name(&definition.value).to_owned()));
            }
        }
    }

    /// Work of the server after a durable write.
    pub(crate) async fn after_write(self: &Arc<Self>, resource: &Resource, value: &Value) {
        if resource.storage == crd::STORAGE {
            self.refresh_registry();
            let begun = value["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|f| f.iter().any(|f| f == crd::FINALIZER));
            if meta::is_deleting(value) && begun {
                self.tasks
                    .spawn(crd::clean_up(self.clone(), meta::name(value).to_owned()));
            }
        }
        if resource.is("", "namespaces") {
            bootstrap::furnish_namespace(self, value).await;
        }
    }

    /// A call of the server to itself, with all permissions.
    pub(crate) fn own_call(self: &Arc<Self>, resource: Arc<Resource>, namespace: &str, name: &str) -> Call {
        Call {
            server: self.clone(),
            path: ResourcePath {
                group: resource.group.clone(),
                version: resource.version.clone(),
                plural: resource.plural.clone(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                subresource: String::new(),
            },
            resource,
            query: Query::default(),
            user: Arc::new(User::admin()),
            form: Form::Plain,
            content_type: String::new(),
            user_agent: "embedded-kube".into(),
            body: Bytes::new(),
            options_kind: "UpdateOptions.meta.k8s.io",
            warnings: Mutex::default(),
        }
    }

    /// Serves one request. Never panics: a bug becomes a 500 and a log line.
    pub(crate) async fn handle<B>(self: Arc<Self>, request: Request<B>, peer: Option<Arc<User>>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let line = format!("{} {}", request.method(), request.uri());
        let answer = AssertUnwindSafe(self.answer(request, peer)).catch_unwind().await;
        match answer {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => status.to_response(),
            Err(_) => {
                tracing::error!(request = %line, "the API server panicked while serving a request");
                Status::internal("this request hit a bug in the API server; see its log").to_response()
            }
        }
    }

    async fn answer<B>(self: Arc<Self>, request: Request<B>, peer: Option<Arc<User>>) -> Result<Response<Body>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (mut head, sent) = request.into_parts();
        let info = RequestInfo::parse(&head.method, &head.uri)?;
        if let Some(open) = discovery::open_path(&info.path) {
            return Ok(open);
        }
        let user = self.authenticator.authenticate(&self.store, &head.headers, peer)?;
        auth::authorize(&self, &user, &info)?;
        let text = |name: header::HeaderName| header_text(&head.headers, &name).to_owned();
        let Some(path) = info.resource.clone() else {
            return discovery::serve(&self, &info, &text(header::ACCEPT));
        };
        let registry = self.registry();
        let resource = registry
            .find(&path.group, &path.version, &path.plural)
            .filter(|found| found.namespaced != path.namespace.is_empty() || !found.namespaced)
            .or_else(|| {
                // Lists across all namespaces come without one.
                let found = registry.find(&path.group, &path.version, &path.plural)?;
                (matches!(info.verb, "list" | "watch" | "deletecollection") || is_review(found)).then_some(found)
            })
            .cloned()
            .ok_or_else(Status::not_served)?;
        if !resource.namespaced && !path.namespace.is_empty() && !resource.is("", "namespaces") {
            return Err(Status::not_served());
        }
        if !path.subresource.is_empty() && resource.subresource(&path.subresource).is_none() {
            return Err(Status::not_served());
        }
        let mut path = path;
        if matches!(info.verb, "list" | "deletecollection")
            || (info.verb == "watch" && info.query.get("fieldSelector").is_some())
        {
            // The name came from the field selector and only matters to RBAC.
            path.name = String::new();
        }
        let streaming = matches!(path.subresource.as_str(), "exec" | "attach" | "portforward" | "log");
        let (form, content_type, user_agent) = (
            if streaming {
                Form::Plain
            } else {
                Form::from_accept(&text(header::ACCEPT))?
            },
            text(header::CONTENT_TYPE),
            text(header::USER_AGENT),
        );
        let upgrade = head.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let call = Call {
            server: self.clone(),
            resource,
            path,
            query: info.query,
            user,
            form,
            content_type,
            user_agent,
            body: if streaming {
                Bytes::new()
            } else {
                body::read(sent).await?
            },
            options_kind: match info.verb {
                "create" => "CreateOptions.meta.k8s.io",
                "patch" => "PatchOptions.meta.k8s.io",
                "delete" | "deletecollection" => "DeleteOptions.meta.k8s.io",
                _ => "UpdateOptions.meta.k8s.io",
            },
            warnings: Mutex::default(),
        };
        if streaming {
            return super::pods::stream(call, head, upgrade).await;
        }
        match (&call.resource.rules, call.path.subresource.as_str()) {
            (super::resources::Rules::Ephemeral, _) => super::reviews::serve(&call, info.verb).await,
            (_, "binding" | "eviction" | "token") => super::pods::act(&call, info.verb).await,
            _ => rest::serve(call, info.verb).await,
        }
    }
}

fn is_review(resource: &Resource) -> bool {
    matches!(resource.rules, super::resources::Rules::Ephemeral)
}

pub(crate) fn header_text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

pub(crate) fn json_response(code: u16, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
