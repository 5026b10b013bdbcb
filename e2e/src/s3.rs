//! A real S3 server for one scenario: a pod with a Service where the environment has its image, otherwise a process on
//! the suite's own address that the embedded environment's pods reach.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use stateward_backup::{Reason, Store};
use stateward_core::store::{S3Store, StoreBlocks};

use crate::servers::proxy::{Fault, Proxy};
use crate::servers::{PASSWORD, Server, USER, aws_files};
use crate::test::{SERVER, Test, is_ready};
use crate::wait::until;

/// The environment variable with the image reference, where pods can run it.
pub(crate) const IMAGE: &str = "STATEWARD_MINIO";
/// The only bucket.
pub(crate) const BUCKET: &str = "mybucket";
const PORT: u16 = 9000;

/// A running server. It ends when it is dropped or when the scenario's namespace is deleted.
pub(crate) struct S3 {
    /// The URL for pods.
    pub(crate) url: String,
    /// The URL for the suite.
    address: SocketAddr,
    _process: Option<Server>,
}

impl S3 {
    /// Starts one with an empty bucket and no size limit.
    pub(crate) async fn start(test: &Test, name: &str) -> Result<Self> {
        Self::with_room(test, name, None).await
    }

    /// Starts one on a disk of this many MiB, so that the disk really fills up.
    pub(crate) async fn small(test: &Test, name: &str, room: u32) -> Result<Self> {
        Self::with_room(test, name, Some(room)).await
    }

    async fn with_room(test: &Test, name: &str, room: Option<u32>) -> Result<Self> {
        match std::env::var(IMAGE) {
            Ok(image) if test.environment.name() == "real" => Self::pod(test, name, &image, room).await,
            _ => {
                let ip = test
                    .environment
                    .address()
                    .context("pods do not reach this machine here")?;
                let start = move || Server::minio_with_room(ip, &[BUCKET], room);
                let server = tokio::task::spawn_blocking(start).await?;
                Ok(Self {
                    url: server.url(),
                    address: server.address,
                    _process: Some(server),
                })
            }
        }
    }

    async fn pod(test: &Test, name: &str, image: &str, room: Option<u32>) -> Result<Self> {
        // In memory, because only there does Kubernetes enforce the limit of a volume.
        let volume = room.map_or(
            json!({}),
            |room| json!({"medium": "Memory", "sizeLimit": format!("{room}Mi")}),
        );
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {SERVER: name}},
            "spec": {
                "automountServiceAccountToken": false,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "minio", "image": image, "imagePullPolicy": "Never",
                    "args": ["server", "--quiet", "--address", format!(":{PORT}"), "/data"],
                    "env": [
                        {"name": "MINIO_ROOT_USER", "value": USER}, {"name": "MINIO_ROOT_PASSWORD", "value": PASSWORD},
                        {"name": "MINIO_BROWSER", "value": "off"}, {"name": "HOME", "value": "/tmp"},
                    ],
                    "readinessProbe": {"httpGet": {"path": "/minio/health/ready", "port": PORT}, "periodSeconds": 1},
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"},
                        // Creates the folder, which is the bucket.
                        {"name": "data", "mountPath": "/bucket", "subPath": BUCKET},
                        {"name": "home", "mountPath": "/tmp"},
                    ],
                }],
                "volumes": [{"name": "data", "emptyDir": volume}, {"name": "home", "emptyDir": {}}],
            },
        }))?;
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"selector": {SERVER: name}, "ports": [{"port": PORT}]},
        }))?;
        let services: Api<Service> = Api::namespaced(test.client.clone(), &test.namespace);
        let made = services.create(&PostParams::default(), &service).await?;
        let ip = made.spec.and_then(|spec| spec.cluster_ip).context("no address")?;
        test.pods().create(&PostParams::default(), &pod).await?;
        let address = SocketAddr::new(ip.parse()?, PORT);
        until(
            "the S3 server to be ready and its Service to have an endpoint",
            90,
            async || {
                let ready = is_ready(&test.pods().get(name).await?);
                let reached = tokio::net::TcpStream::connect(address).await.is_ok();
                Ok((ready && reached).then_some(()))
            },
        )
        .await?;
        Ok(Self {
            url: format!("http://{name}:{PORT}"),
            address,
            _process: None,
        })
    }

    /// Starts a proxy in this process that breaks connections on the way to the server, and returns its URL for pods.
    pub(crate) fn proxied(&self, fault: Fault) -> Result<(Proxy, String)> {
        // The local address towards the server is one that pods can reach, too.
        let ours = UdpSocket::bind("0.0.0.0:0")?;
        ours.connect(self.address)?;
        let ip = ours.local_addr()?.ip();
        let proxy = Proxy::between(ip, self.address, fault);
        let url = format!("http://{}", proxy.address);
        Ok((proxy, url))
    }

    /// Whether a file exists, as any client sees it.
    pub(crate) async fn has(&self, path: &str) -> Result<bool> {
        let secrets = tempfile::tempdir()?;
        aws_files(secrets.path(), USER, PASSWORD);
        let blocks = StoreBlocks {
            s3: Some(S3Store {
                path: path.into(),
                aws_secret: Some("aws".into()),
                endpoint: Some(format!("http://{}", self.address)),
                force_path_style: true,
            }),
            ..StoreBlocks::default()
        };
        let store = Store::open(&blocks, secrets.path(), secrets.path())?;
        match store.head(store.key()).await {
            Ok(_) => Ok(true),
            Err(error) if error.reason == Reason::BackupMissing => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The Secret as users create it: from the two files of the AWS command line.
pub(crate) async fn secret(test: &Test, name: &str, password: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    aws_files(folder.path(), USER, password);
    let file = |name: &str| format!("--from-file={}", folder.path().join(name).display());
    let words = [
        "create",
        "secret",
        "generic",
        name,
        &file("credentials"),
        &file("config"),
    ];
    test.kubectl(&words).await.map(drop)
}
