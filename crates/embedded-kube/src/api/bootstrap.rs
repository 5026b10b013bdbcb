//! The objects that every cluster has from the start.

use std::sync::Arc;

use serde_json::{Value, json};

use super::errors::{Result, Status};
use super::managed;
use super::meta;
use super::rest::{create, update};
use super::server::Server;
use super::store::Key;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Creates an object unless it exists.
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
    // In one batch, so that the first start waits for few commits.
    let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"];
    let namespaces = namespaces.map(|name| ensure(server, "", "namespaces", json!({"metadata": {"name": name}})));
    let roles = cluster_roles().into_iter().map(|(name, rules)| {
        let role = json!({"metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}, "rules": rules});
        ensure(server, RBAC, "clusterroles", role)
    });
    let bindings = [
        ("cluster-admin", "system:masters"),
        ("system:discovery", "system:authenticated"),
        ("system:basic-user", "system:authenticated"),
        ("system:node", "system:nodes"),
    ]
    .map(|(role, group)| {
        let binding = json!({
            "metadata": {"name": role, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
        });
        ensure(server, RBAC, "clusterrolebindings", binding)
    });
    let classes = [
        ("system-cluster-critical", 2_000_000_000),
        ("system-node-critical", 2_000_001_000),
    ]
    .map(|(name, value)| {
        let class = json!({"metadata": {"name": name}, "value": value});
        ensure(server, "scheduling.k8s.io", "priorityclasses", class)
    });
    let (a, b, c, d) = futures::join!(
        futures::future::join_all(namespaces),
        futures::future::join_all(roles),
        futures::future::join_all(bindings),
        futures::future::join_all(classes),
    );
    a.into_iter().chain(b).chain(c).chain(d).collect::<Result<()>>()?;
    kubernetes_service(server).await
}

/// The service `kubernetes`, through which pods reach the API server; its address may differ from that of the last run.
async fn kubernetes_service(server: &Arc<Server>) -> Result<()> {
    let network = &server.network;
    let address = network.range().api_service().to_string();
    let port = super::network::API_PORT;
    let metadata = json!({
        "name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"},
    });
    let spec = json!({
        "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "sessionAffinity": "None",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
        "ports": [{"name": "https", "port": port, "protocol": "TCP", "targetPort": port}],
    });
    let service = json!({"metadata": metadata, "spec": spec});
    let mut slice_labels = metadata.clone();
    slice_labels["labels"] = json!({"kubernetes.io/service-name": "kubernetes"});
    let slice = json!({
        "metadata": slice_labels, "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
    });
    for (group, plural, wanted) in [("", "services", service), ("discovery.k8s.io", "endpointslices", slice)] {
        ensure(server, group, plural, wanted.clone()).await?;
        let resource = server
            .registry()
            .any_version(group, plural)
            .cloned()
            .ok_or_else(Status::not_served)?;
        let call = server.own_call(resource, "default", "kubernetes");
        let changed = update::modify(&call, "kubernetes", |current| {
            let mut next = current.value.clone();
            for field in ["spec", "ports", "endpoints"] {
                if let Some(value) = wanted.get(field) {
                    next[field] = value.clone();
                }
            }
            Ok(next)
        });
        changed.await?;
    }
    Ok(())
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn cluster_roles() -> Vec<(&'static str, Vec<Value>)> {
    const READ: &[&str] = &["get", "list", "watch"];
    const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
    let read_and_write = [READ, WRITE].concat();
    let core_read = [
        "configmaps",
        "endpoints",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "pods",
        "serviceaccounts",
        "services",
        "services/status",
        "events",
        "namespaces",
        "namespaces/status",
        "pods/log",
        "pods/status",
        "bindings",
    ];
    let view = vec![
        rule(&[""], &core_read, READ),
        rule(&["discovery.k8s.io"], &["endpointslices"], READ),
        rule(&["events.k8s.io"], &["events"], READ),
        rule(
            &["apps"],
            &[
                "controllerrevisions",
                "statefulsets",
                "statefulsets/scale",
                "statefulsets/status",
            ],
            READ,
        ),
        rule(&["networking.k8s.io"], &["networkpolicies"], READ),
        rule(
            &["policy"],
            &["poddisruptionbudgets", "poddisruptionbudgets/status"],
            READ,
        ),
    ];
    let mut edit = view.clone();
    edit.extend([
        rule(
            &[""],
            &["pods/attach", "pods/exec", "pods/portforward", "secrets"],
            &["get", "list", "watch", "create"],
        ),
        rule(&[""], &["serviceaccounts"], &["impersonate"]),
        rule(&[""], &["pods", "pods/attach", "pods/exec", "pods/portforward"], WRITE),
        rule(&[""], &["pods/eviction", "serviceaccounts/token"], &["create"]),
        rule(
            &[""],
            &[
                "configmaps",
                "events",
                "persistentvolumeclaims",
                "secrets",
                "serviceaccounts",
                "services",
            ],
            WRITE,
        ),
        rule(&["apps"], &["statefulsets", "statefulsets/scale"], WRITE),
        rule(&["networking.k8s.io"], &["networkpolicies"], WRITE),
        rule(&["policy"], &["poddisruptionbudgets"], WRITE),
        rule(&["coordination.k8s.io"], &["leases"], &read_and_write),
    ]);
    let mut admin = edit.clone();
    admin.extend([
        rule(&["authorization.k8s.io"], &["localsubjectaccessreviews"], &["create"]),
        rule(&[RBAC], &["rolebindings", "roles"], &read_and_write),
    ]);
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let all_urls = json!({"nonResourceURLs": ["*"], "verbs": ["*"]});
    let discovery = json!({
        "nonResourceURLs": ["/", "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/"],
        "verbs": ["get"],
    });
    vec![
        ("cluster-admin", vec![all, all_urls]),
        ("admin", admin),
        ("edit", edit),
        ("view", view),
        ("system:discovery", vec![discovery]),
        (
            "system:basic-user",
            vec![
                rule(
                    &["authorization.k8s.io"],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                    &["create"],
                ),
                rule(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
            ],
        ),
        (
            "system:node",
            vec![
                rule(
                    &[""],
                    &["nodes", "nodes/status", "pods", "pods/status", "events"],
                    &["*"],
                ),
                rule(
                    &[""],
                    &[
                        "configmaps",
                        "secrets",
                        "services",
                        "persistentvolumeclaims",
                        "persistentvolumes",
                        "serviceaccounts",
                        "namespaces",
                    ],
                    READ,
                ),
                rule(&[""], &["serviceaccounts/token", "pods/eviction"], &["create"]),
                rule(&["coordination.k8s.io"], &["leases"], &["*"]),
                rule(&["discovery.k8s.io"], &["endpointslices"], READ),
                rule(&["events.k8s.io"], &["events"], &["create", "patch", "update"]),
                rule(&["storage.k8s.io"], &["storageclasses"], READ),
            ],
        ),
    ]
}

/// The objects that every namespace has.
pub(crate) async fn furnish_namespace(server: &Arc<Server>, namespace: &Value) {
    if meta::is_deleting(namespace) || namespace["status"]["phase"] == "Terminating" {
        return;
    }
    let name = meta::name(namespace);
    if server.store.get(&Key::new("namespaces", "", name)).is_none() {
        return;
    }
    let account = json!({"metadata": {"name": "default", "namespace": name}});
    let bundle = json!({
        "metadata": {"name": "kube-root-ca.crt", "namespace": name}, "data": {"ca.crt": server.authenticator.ca()},
    });
    let (account, bundle) = futures::join!(
        ensure(server, "", "serviceaccounts", account),
        ensure(server, "", "configmaps", bundle)
    );
    for (what, made) in [("service account", account), ("CA bundle", bundle)] {
        if let Err(e) = made {
            tracing::warn!(namespace = name, error = %e, "cannot create the {what} of a namespace");
        }
    }
}
