//! An embedded Kubernetes with the objects of a MySQLCluster, made from its manifests, and no operator.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use embedded_kube::{Cluster, ImageSource};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::gvk::GroupVersionKind;
use kube::{Api, Client};
use mysql_async::{Conn, OptsBuilder, SslOpts};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stateward_mysql::agent::{Mysqld, STATE, State, TOKEN_KEY, boot_of};
use stateward_mysql::world::Object;
use stateward_mysql::{Intent, Memory, MySQLCluster, api, layout, manifests, names};

pub(crate) const NAMESPACE: &str = "shop";
pub(crate) const NAME: &str = "orders";
pub(crate) const ROOT: &str = "root's \\ \"password\"";
pub(crate) const OPERATOR: &str = "operator's password";
pub(crate) const CLONE: &str = "clone-password";
const TOKEN: &str = "the-agent's-token";
const IMAGE: &str = "stateward.example/stateward:1";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is there.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let waiting = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, waiting).await;
    found.unwrap_or_else(|_| panic!("waited for {what}"))
}

/// The images of `./x images`, which have MySQL's.
fn images() -> PathBuf {
    let from = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = from("STATEWARD_CACHE").or_else(|| {
        let cache = from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")));
        cache.map(|cache| cache.join("stateward"))
    });
    let folder = from("STATEWARD_IMAGES").or_else(|| cache.map(|cache| cache.join("images")));
    let folder = folder.expect("HOME is set");
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let built = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("mysql-9.7-"));
    assert!(
        built.into_iter().any(|entry| entry.path().join("image.json").exists()),
        "the image mysql:9.7 is not in {}: type ./x images mysql:9.7",
        folder.display()
    );
    folder
}

/// The cluster, and the certificates of its members.
pub(crate) struct Members {
    pub(crate) kube: Cluster,
    pub(crate) intent: Intent,
    ca: String,
    _folder: tempfile::TempDir,
}

impl Members {
    /// Creates the objects and waits until every member is ready.
    pub(crate) async fn start(spec: Value) -> Self {
        let _already = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().expect("a folder");
        let program = Path::new(env!("CARGO_BIN_EXE_mysql-agent"));
        let image = ImageSource::program(IMAGE, ("stateward", program), folder.path()).expect("the program");
        let kube = Cluster::builder()
            .nodes(2)
            .images(image)
            .images(ImageSource::Folder(images()))
            .nearest_images(true)
            .back_off(Duration::from_millis(200))
            .start()
            .await
            .expect("an embedded Kubernetes");
        let client = kube.client();
        stateward_runtime::crds::bring_up_to_date(&client, api::crds::all())
            .await
            .expect("the definition");
        let restricted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
        apply(&client, &restricted).await;
        let clusters: Api<MySQLCluster> = Api::namespaced(client.clone(), NAMESPACE);
        let wanted = json!({"apiVersion": "mysql.stateward.dev/v1alpha1", "kind": "MySQLCluster",
            "metadata": {"name": NAME}, "spec": spec});
        let wanted = serde_json::from_value(wanted).expect("a MySQLCluster");
        let made = clusters.create(&PostParams::default(), &wanted).await.expect("created");
        let intent = Intent::of(&made, &Memory::default()).expect("a good spec");
        let ca = secrets(&client, &intent).await;
        let objects = [
            Object::Config,
            Object::Headless,
            Object::PrimaryService,
            Object::ReadService,
            Object::Budget,
            Object::NetworkPolicy,
        ];
        for object in objects {
            let made = manifests::object(object, &intent).expect("a manifest");
            apply(&client, &made).await;
        }
        apply(&client, &manifests::stateful_set(&intent, intent.size, IMAGE, None)).await;
        let members = Self {
            kube,
            intent,
            ca,
            _folder: folder,
        };
        for member in 0..members.intent.size {
            members.ready(member).await;
        }
        members
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.kube.client(), NAMESPACE)
    }

    /// Waits until a member is ready.
    pub(crate) async fn ready(&self, member: u32) -> Pod {
        let name = format!("{NAME}-{member}");
        until(&format!("{name} to be ready"), || async {
            let pod = self.pods().get_opt(&name).await.expect("a reply")?;
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let ready = conditions
                .iter()
                .any(|one| one.type_ == "Ready" && one.status == "True");
            (ready && pod.metadata.deletion_timestamp.is_none()).then_some(pod)
        })
        .await
    }

    /// How often mysqld's container was restarted, and the last exit code.
    pub(crate) async fn restarts(&self, member: u32) -> (i32, Option<i32>) {
        let pod = self.pods().get(&format!("{NAME}-{member}")).await.expect("a pod");
        let status = pod
            .status
            .and_then(|status| status.container_statuses)
            .unwrap_or_default();
        let mysqld = status.iter().find(|one| one.name == "mysqld").expect("a status");
        let last = mysqld.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        (mysqld.restart_count, last.map(|end| end.exit_code))
    }

    pub(crate) fn address(&self, member: u32) -> Ipv4Addr {
        let faults = self.kube.faults().expect("nodes");
        faults
            .address(NAMESPACE, &format!("{NAME}-{member}"))
            .expect("an address")
    }

    fn host(&self, member: u32) -> String {
        self.intent.host(stateward_mysql::Ordinal(member))
    }

    fn options(&self, member: u32, user: &str, password: &str) -> OptsBuilder {
        let tls = SslOpts::default()
            .with_root_certs(vec![self.ca.clone().into_bytes().into()])
            .with_disable_built_in_roots(true)
            .with_danger_tls_hostname_override(Some(self.host(member)));
        OptsBuilder::default()
            .ip_or_hostname(self.address(member).to_string())
            .user(Some(user))
            .pass(Some(password))
            .prefer_socket(false)
            .ssl_opts(Some(tls))
    }

    /// A session of the operator's, over TLS and on the operator's port.
    pub(crate) async fn session(&self, member: u32) -> Conn {
        until(&format!("a session with member {member}"), || async {
            let port = u16::try_from(names::ADMIN_PORT).expect("a port");
            let options = self.options(member, names::ACCOUNT_OPERATOR, OPERATOR).tcp_port(port);
            Conn::new(options).await.ok()
        })
        .await
    }

    /// What comes of logging in on the port of clients.
    pub(crate) async fn log_in(&self, member: u32, user: &str, password: &str) -> mysql_async::Result<Conn> {
        Conn::new(self.options(member, user, password)).await
    }

    fn agent(&self, member: u32) -> (reqwest::Client, String) {
        let ca = reqwest::Certificate::from_pem(self.ca.as_bytes()).expect("a certificate");
        let port = u16::try_from(names::AGENT_PORT).expect("a port");
        let address = SocketAddr::from((self.address(member), port));
        let host = self.host(member);
        let client = reqwest::Client::builder()
            .tls_certs_only([ca])
            .resolve(&host, address)
            .build()
            .expect("a client");
        (client, format!("https://{host}:{port}"))
    }

    /// Asks the agent of a member.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, member: u32, path: &str, body: Option<Value>) -> T {
        let (client, url) = self.agent(member);
        let request = match &body {
            Some(body) => client
                .post(url + path)
                .header("content-type", "application/json")
                .body(body.to_string()),
            None => client.get(url + path),
        };
        let reply = request.bearer_auth(TOKEN).send().await.expect("a reply");
        let (status, text) = (reply.status(), reply.text().await.expect("a body"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {status} {text}: {error}"))
    }

    /// The status of a request with another token.
    pub(crate) async fn ask_as_a_stranger(&self, member: u32, path: &str) -> u16 {
        let (client, url) = self.agent(member);
        let reply = client.get(url + path).bearer_auth("another token").send().await;
        reply.expect("a reply").status().as_u16()
    }

    /// Waits until mysqld replies under another boot.
    pub(crate) async fn other_boot(&self, member: u32, than: &str) -> String {
        self.ready(member).await;
        until(&format!("another boot of member {member} than {than}"), || async {
            let (client, url) = self.agent(member);
            let reply = client.get(url + STATE).bearer_auth(TOKEN).send().await.ok()?;
            let state: State = serde_json::from_str(&reply.text().await.ok()?).ok()?;
            match state.mysqld {
                Mysqld::Running { boot, ready: true } if boot != than => Some(boot),
                _ => None,
            }
        })
        .await
    }
}

/// The boot of a server, by its own word.
pub(crate) fn boot(pid_file: &str) -> String {
    boot_of(pid_file).to_owned()
}

/// Creates the Secrets, and returns the CA.
async fn secrets(client: &Client, intent: &Intent) -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).expect("a CA");
    let issuer = rcgen::Issuer::new(params, key);
    let hosts: Vec<String> = intent.members().map(|member| intent.host(member)).collect();
    let member_key = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(hosts)
        .and_then(|params| params.signed_by(&member_key, &issuer))
        .expect("a certificate");
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    for (name, data) in [
        (names::root_secret(NAME), json!({"username": "root", "password": ROOT})),
        (
            names::internal_secret(NAME),
            json!({names::ACCOUNT_OPERATOR: OPERATOR, names::ACCOUNT_CLONE: CLONE, TOKEN_KEY: TOKEN}),
        ),
        (
            names::tls_secret(NAME),
            json!({layout::TLS_CA: ca.pem(), layout::TLS_CERTIFICATE: certificate.pem(),
                layout::TLS_KEY: member_key.serialize_pem()}),
        ),
    ] {
        let secret = json!({"metadata": {"name": name}, "stringData": data});
        let secret = serde_json::from_value(secret).expect("a Secret");
        api.create(&PostParams::default(), &secret).await.expect("created");
    }
    ca.pem()
}

/// Applies an object as the operator does.
async fn apply(client: &Client, object: &impl Serialize) {
    let object = serde_json::to_value(object).expect("JSON");
    let dynamic: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
    let types = dynamic.types.clone().expect("apiVersion and kind");
    let gvk = GroupVersionKind::try_from(&types).expect("a kind");
    let resource = ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = match &dynamic.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = dynamic.metadata.name.clone().expect("a name");
    let params = PatchParams::apply("stateward").force();
    let applied = api.patch(&name, &params, &Patch::Apply(&object)).await;
    applied.unwrap_or_else(|error| panic!("{} {name}: {error}", gvk.kind));
}
