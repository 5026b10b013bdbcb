//! What every cluster has from the start.

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors::{Result, Status};
use super::managed;
use super::meta;
use super::rest::create;
use super::server::Server;
use super::store::Key;

/// Creates an object unless it is there.
async fn ensure(server: &Arc<Server>, group: &str, plural: &str, object: Value) -> Result<()> {
    let resource = server
        .registry()
        .any_version(group, plural)
        .cloned()
        .ok_or_else(Status::not_served)?;
    let key = Key::new(&resource.storage, meta::namespace(&object), meta::name(&object));
    if server.store.get(&key).is_some() {
        return Ok(());
    }
    let namespace = meta::namespace(&object).to_owned();
    let call = server.own_call(resource, &namespace, "");
    let mut object = object;
    object["apiVersion"] = call.resource.api_version().into();
    object["kind"] = call.resource.kind.clone().into();
    match Box::pin(create::store_new(&call, object, managed::Change::Update)).await {
        Err(e) if e.reason != "AlreadyExists" => Err(e),
        _ => Ok(()),
    }
}

/// Creates the namespaces, roles and services that every cluster has.
pub(crate) async fn bootstrap(server: &Arc<Server>) -> Result<()> {
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        ensure(server, "", "namespaces", json!({"metadata": {"name": namespace}})).await?;
    }
    Ok(())
}

/// What every namespace has.
pub(crate) async fn furnish_namespace(server: &Arc<Server>, namespace: &Value) {
    if meta::is_deleting(namespace) || namespace["status"]["phase"] == "Terminating" {
        return;
    }
    let name = meta::name(namespace);
    if server.store.get(&Key::new("namespaces", "", name)).is_none() {
        return;
    }
    let account = json!({"metadata": {"name": "default", "namespace": name}});
    if let Err(e) = ensure(server, "", "serviceaccounts", account).await {
        tracing::warn!(namespace = name, error = %e, "cannot create the default service account");
    }
    let bundle = json!({
        "metadata": {"name": "kube-root-ca.crt", "namespace": name}, "data": {"ca.crt": server.authenticator.ca()},
    });
    if let Err(e) = ensure(server, "", "configmaps", bundle).await {
        tracing::warn!(namespace = name, error = %e, "cannot create the CA bundle");
    }
}
