//! The operator against an embedded Kubernetes that has no nodes: what it writes, and who may write.

use std::time::{Duration, Instant};

use embedded_kube::Cluster;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use stateward_etcd::api::{EtcdCluster, EtcdRestore};
use stateward_etcd_driver::{Config, Etcd};
use stateward_runtime::{Election, operator};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Operator {
    stop: CancellationToken,
    task: JoinHandle<Result<(), operator::Error>>,
}

impl Operator {
    fn start(client: Client, identity: Option<&str>) -> Self {
        let stop = CancellationToken::new();
        let config = operator::Config {
            election: identity.map(|identity| Election {
                duration: Duration::from_secs(3),
                ..Election::new("default", "stateward", identity)
            }),
            ..operator::Config::default()
        };
        let running = operator::run(config, client, stop.clone(), |runtime| {
            vec![Etcd::new(runtime, Config::default())]
        });
        let task = tokio::spawn(async move {
            let ended = running.await;
            if let Err(error) = &ended {
                eprintln!("the operator ended: {error:?}");
            }
            ended
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it ends").expect("without an error");
    }
}

async fn until<T, F: AsyncFnMut() -> Option<T>>(what: &str, mut condition: F) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited 60 s for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn apply(client: &Client, name: &str) -> EtcdCluster {
    let api: Api<EtcdCluster> = Api::namespaced(client.clone(), "default");
    let text = serde_json::json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdCluster",
        "metadata": {"name": name}, "spec": {"size": 3},
    });
    let cluster: EtcdCluster = serde_json::from_value(text).expect("an EtcdCluster");
    // the definitions are made by the operator at its start
    until("the EtcdCluster to be taken", async || {
        api.create(&PostParams::default(), &cluster).await.ok()
    })
    .await
}

async fn list<K>(client: &Client) -> Vec<K>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    let ours = ListParams::default().labels("app=etcd,etcd_cluster");
    api.list(&ours).await.expect("a list").items
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_member_is_recorded_and_made_once() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let operator = Operator::start(client.clone(), None);
    let made = apply(&client, "demo").await;

    // when the operator has seen it
    let pod: Pod = until("the first pod", async || list::<Pod>(&client).await.pop()).await;

    // then the record names that pod, and everything belongs to the cluster
    let clusters: Api<EtcdCluster> = Api::namespaced(client.clone(), "default");
    let now = clusters.get("demo").await.expect("the cluster");
    let record = now.status.and_then(|status| status.bootstrap).expect("a record");
    assert_eq!(pod.metadata.name.as_ref(), Some(&record.seed));
    let (services, budgets) = (
        list::<Service>(&client).await,
        list::<PodDisruptionBudget>(&client).await,
    );
    let claims = list::<PersistentVolumeClaim>(&client).await;
    assert_eq!((services.len(), budgets.len(), claims.len()), (2, 1, 1));
    let owners = pod.metadata.owner_references.iter().flatten();
    assert!(owners.map(|owner| Some(&owner.uid)).eq([made.metadata.uid.as_ref()]));

    // and an operator that starts again changes nothing
    operator.stop().await;
    let again = Operator::start(client.clone(), None);
    let beside = apply(&client, "beside").await;
    until("the operator to be at work again", async || {
        let owned = |pod: &Pod| {
            let owners = pod.metadata.owner_references.iter().flatten();
            owners.map(|owner| Some(&owner.uid)).eq([beside.metadata.uid.as_ref()])
        };
        list::<Pod>(&client).await.iter().any(owned).then_some(())
    })
    .await;
    let same = list::<Pod>(&client)
        .await
        .into_iter()
        .find(|now| now.metadata.uid == pod.metadata.uid);
    assert!(same.is_some() && list::<Pod>(&client).await.len() == 2);
    again.stop().await;
    kube.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_somebody_else_has_is_said_and_left_alone() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let text = serde_json::json!({"metadata": {"name": "demo"}, "spec": {"ports": [{"port": 80}]}});
    let theirs: Service = serde_json::from_value(text).expect("a Service");
    let theirs = services.create(&PostParams::default(), &theirs).await.expect("made");
    let operator = Operator::start(client.clone(), None);
    apply(&client, "demo").await;

    let clusters: Api<EtcdCluster> = Api::namespaced(client.clone(), "default");
    let words = until("the status to say so", async || {
        let status = clusters.get("demo").await.ok()?.status?;
        status
            .waiting
            .contains("belongs to another object")
            .then_some(status.waiting)
    })
    .await;
    assert!(words.contains("demo"), "{words}");
    assert_eq!(services.get("demo").await.expect("still there").spec, theirs.spec);
    assert!(list::<Pod>(&client).await.is_empty());

    // taken away, the cluster goes on
    services
        .delete("demo", &kube::api::DeleteParams::default())
        .await
        .expect("deleted");
    until("the first pod", async || list::<Pod>(&client).await.pop()).await;
    operator.stop().await;
    kube.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operator_leads_and_the_next_takes_over() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let holder = async || leases.get_opt("stateward").await.ok()??.spec?.holder_identity;
    let first = Operator::start(client.clone(), Some("first"));
    until("the first to lead", async || {
        holder().await.filter(|name| name == "first")
    })
    .await;
    let second = Operator::start(client.clone(), Some("second"));
    apply(&client, "demo").await;
    until("the first pod", async || list::<Pod>(&client).await.pop()).await;
    assert_eq!(holder().await.as_deref(), Some("first"));

    // a graceful stop gives the Lease back
    first.stop().await;
    until("the second to lead", async || {
        holder().await.filter(|name| name == "second")
    })
    .await;
    apply(&client, "beside").await;
    until("its pod", async || {
        (list::<Pod>(&client).await.len() == 2).then_some(())
    })
    .await;

    // one that dies does not; a third waits until it is over
    second.task.abort();
    let third = Operator::start(client.clone(), Some("third"));
    until("the third to lead", async || {
        holder().await.filter(|name| name == "third")
    })
    .await;
    third.stop().await;
    kube.stop().await;
}

/// Allows the user `operator` everything but EtcdRestores.
async fn allow_all_but_restores(client: &Client) {
    let role = serde_json::json!({
        "metadata": {"name": "operator"},
        "rules": [
            {
                "apiGroups": [
                    "", "policy", "coordination.k8s.io", "apiextensions.k8s.io", "events.k8s.io", "storage.k8s.io",
                ],
                "resources": ["*"], "verbs": ["*"],
            },
            {
                "apiGroups": ["etcd.database.coreos.com"],
                "resources": ["etcdclusters", "etcdclusters/status", "etcdbackups", "etcdbackups/status"], "verbs": ["*"],
            },
        ],
    });
    let role: ClusterRole = serde_json::from_value(role).expect("a ClusterRole");
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.create(&PostParams::default(), &role).await.expect("made");
    bind_everywhere(client, "operator").await;
}

async fn bind_everywhere(client: &Client, role: &str) {
    let text = serde_json::json!({
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}],
    });
    let binding: ClusterRoleBinding = serde_json::from_value(text).expect("a ClusterRoleBinding");
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.create(&PostParams::default(), &binding).await.expect("made");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_may_not_see_restores_begins_clusters() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    allow_all_but_restores(&client).await;
    let operator = Operator::start(kube.client_as("operator", &[]), None);
    apply(&client, "demo").await;
    until("the first pod", async || list::<Pod>(&client).await.pop()).await;
    operator.stop().await;
    kube.stop().await;
}

/// The watch of EtcdRestores shows nothing: it is refused, while one namespace's may be listed.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_does_not_begin_empty_beside_a_restore_that_no_watch_has_shown() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    allow_all_but_restores(&client).await;
    let text = serde_json::json!({
        "metadata": {"name": "restores"},
        "rules": [{
            "apiGroups": ["etcd.database.coreos.com"],
            "resources": ["etcdrestores", "etcdrestores/status"], "verbs": ["*"],
        }],
    });
    let role: ClusterRole = serde_json::from_value(text).expect("a ClusterRole");
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.create(&PostParams::default(), &role).await.expect("made");
    let text = serde_json::json!({
        "metadata": {"name": "restores"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "restores"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}],
    });
    let binding: RoleBinding = serde_json::from_value(text).expect("a RoleBinding");
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "default");
    bindings.create(&PostParams::default(), &binding).await.expect("made");

    // given an EtcdRestore and its EtcdCluster, applied together
    let operator = Operator::start(kube.client_as("operator", &[]), None);
    let text = serde_json::json!({
        "apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdRestore",
        "metadata": {"name": "demo"},
        "spec": {"etcdCluster": {"name": "demo"}, "backupRef": {"name": "nightly"}},
    });
    let restore: EtcdRestore = serde_json::from_value(text).expect("an EtcdRestore");
    let restores: Api<EtcdRestore> = Api::namespaced(client.clone(), "default");
    until("the EtcdRestore to be taken", async || {
        restores.create(&PostParams::default(), &restore).await.ok()
    })
    .await;
    apply(&client, "demo").await;

    // when the operator has decided to begin the cluster
    let clusters: Api<EtcdCluster> = Api::namespaced(client.clone(), "default");
    until("the record of the first member", async || {
        clusters.get("demo").await.ok()?.status?.bootstrap
    })
    .await;

    // then it does not, and says why as soon as the watch shows the EtcdRestore
    bind_everywhere(&client, "restores").await;
    until("the status to say so", async || {
        let status = clusters.get("demo").await.ok()?.status?;
        status.waiting.contains("EtcdRestore demo").then_some(())
    })
    .await;
    assert!(list::<Pod>(&client).await.is_empty());

    // and without it, it begins
    restores
        .delete("demo", &kube::api::DeleteParams::default())
        .await
        .expect("deleted");
    until("the first pod", async || list::<Pod>(&client).await.pop()).await;
    operator.stop().await;
    kube.stop().await;
}
