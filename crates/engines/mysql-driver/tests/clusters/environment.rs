//! An embedded Kubernetes with the driver.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use embedded_kube::{Cluster, ImageSource};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::api::PostParams;
use kube::{Api, Client};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, SslOpts};
use serde_json::{Value, json};
use stateward_mysql::api::{self, MySQLClusterStatus};
use stateward_mysql::{MySQLCluster, layout, names};
use stateward_mysql_driver::MySQLDriver;
use stateward_runtime::{Driver, Leadership, Runtime, crds, secrets, watch};
use tokio_util::sync::CancellationToken;

pub(crate) const NAMESPACE: &str = "shop";
const IMAGE: &str = "stateward.example/stateward:1";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Environment {
    pub(crate) kube: Cluster,
    pub(crate) client: Client,
    driver: Arc<MySQLDriver>,
    runtime: Arc<Runtime>,
    stop: CancellationToken,
    watches: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

/// The images of `./x images`, which have MySQL's.
fn images() -> PathBuf {
    let from = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let cache = from("STATEWARD_CACHE").or_else(|| {
        let cache = from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")));
        cache.map(|cache| cache.join("stateward"))
    });
    let folder = from("STATEWARD_IMAGES").or_else(|| cache.map(|cache| cache.join("images")));
    folder.expect("HOME is set")
}

impl Environment {
    pub(crate) async fn start() -> Self {
        let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into());
        let _set = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
        let folder = tempfile::tempdir().expect("a folder");
        let program = Path::new(env!("CARGO_BIN_EXE_mysql-agent"));
        let image = ImageSource::program(IMAGE, ("stateward", program), folder.path()).expect("the program");
        let kube = Cluster::builder()
            .nodes(3)
            .images(image)
            .images(ImageSource::Folder(images()))
            .nearest_images(true)
            .back_off(Duration::from_millis(200))
            .start()
            .await
            .expect("an embedded Kubernetes");
        let client = kube.client();
        crds::bring_up_to_date(&client, api::crds::all())
            .await
            .expect("the definition");
        let namespace = json!({"metadata": {"name": NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
        let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .expect("created");
        let stop = CancellationToken::new();
        let runtime = Arc::new(Runtime::new(client.clone(), None, Leadership::alone(), stop.clone()));
        let driver = MySQLDriver::new(runtime.clone(), IMAGE);
        let (followed, shared) = (driver.clone(), runtime.clone());
        let watches = tokio::spawn(async move {
            let nodes = watch::nodes(&shared, |node| followed.node_changed(node));
            tokio::join!(followed.clone().watches(), nodes, secrets::follow_named(&shared));
        });
        Self {
            kube,
            client,
            driver,
            runtime,
            stop,
            watches,
            _folder: folder,
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) {
        let cluster = json!({"apiVersion": "mysql.stateward.dev/v1alpha1", "kind": "MySQLCluster",
            "metadata": {"name": name}, "spec": spec});
        let cluster: MySQLCluster = serde_json::from_value(cluster).expect("a MySQLCluster");
        let made = self.api().create(&PostParams::default(), &cluster).await;
        made.expect("created");
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&MySQLClusterStatus) -> bool,
    ) -> MySQLClusterStatus {
        let clusters: Api<MySQLCluster> = self.api();
        let mut last = MySQLClusterStatus::default();
        let waiting = async {
            loop {
                last = clusters
                    .get(name)
                    .await
                    .expect("it is there")
                    .status
                    .unwrap_or_default();
                if wanted(&last) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            let text = serde_json::to_string_pretty(&last).expect("JSON");
            panic!("waited for {what}: {text}");
        }
        last
    }

    /// Waits until something is there.
    pub(crate) async fn wait_for<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let waiting = async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, waiting).await;
        found.unwrap_or_else(|_| panic!("waited for {what}"))
    }

    /// The address of a Service.
    pub(crate) async fn service(&self, name: &str) -> String {
        let service = self.api::<Service>().get(name).await.expect("a Service");
        let address = service.spec.and_then(|spec| spec.cluster_ip);
        address.expect("an address")
    }

    /// The address of a pod.
    pub(crate) async fn pod(&self, name: &str) -> String {
        let pod = self.api::<Pod>().get(name).await.expect("a pod");
        pod.status.and_then(|status| status.pod_ip).expect("an address")
    }

    async fn secret(&self, name: &str, key: &str) -> String {
        let secret = self.api::<Secret>().get(name).await.expect("a Secret");
        let value = secret.data.unwrap_or_default().remove(key).expect("a key");
        String::from_utf8(value.0).expect("text")
    }

    /// How an application connects to an address.
    pub(crate) async fn options(&self, cluster: &str, address: &str) -> OptsBuilder {
        let app = names::app_secret(cluster);
        let ca = self.secret(&names::tls_secret(cluster), layout::TLS_CA).await;
        let tls = SslOpts::default()
            .with_root_certs(vec![ca.into_bytes().into()])
            .with_disable_built_in_roots(true)
            .with_danger_tls_hostname_override(Some(format!("{cluster}-primary.{NAMESPACE}.svc")));
        OptsBuilder::default()
            .ip_or_hostname(address)
            .user(Some(self.secret(&app, "username").await))
            .pass(Some(self.secret(&app, "password").await))
            .db_name(Some(self.secret(&app, "database").await))
            .prefer_socket(false)
            .ssl_opts(Some(tls))
    }

    /// The rows at an address. `None`: it does not say.
    pub(crate) async fn rows(&self, cluster: &str, address: &str) -> Option<BTreeSet<u64>> {
        let options = self.options(cluster, address).await;
        let asked = async {
            let mut conn = Conn::new(options).await.ok()?;
            let rows: Vec<u64> = conn.query("SELECT id FROM written").await.ok()?;
            conn.disconnect().await.ok()?;
            Some(rows.into_iter().collect())
        };
        tokio::time::timeout(Duration::from_secs(5), asked).await.ok()?
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.runtime.workers.ended(Duration::from_secs(20)).await;
        self.watches.abort();
        drop(self.driver);
        self.kube.stop().await;
    }
}
