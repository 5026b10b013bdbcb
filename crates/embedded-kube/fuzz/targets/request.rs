//! One request with a method, path, query, headers and body from the fuzzer, mostly of words that the server knows. Any
//! response is correct; a panic, or no response within ten seconds, is a finding.

#![no_main]

use std::sync::OnceLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use embedded_kube::Cluster;
use libfuzzer_sys::fuzz_target;

/// A piece of a path or of a query: usually a known word, because random letters only reach the 404.
#[derive(Arbitrary, Debug)]
enum Word {
    Known(u8),
    Made(String),
}

const KNOWN: [&str; 40] = [
    "api", "apis", "v1", "apps", "namespaces", "default", "pods", "services", "configmaps", "secrets", "nodes", "events",
    "statefulsets", "leases", "coordination.k8s.io", "customresourcedefinitions", "apiextensions.k8s.io", "status",
    "scale", "log", "exec", "attach", "portforward", "eviction", "binding", "watch=true", "limit=1", "continue=x",
    "resourceVersion=0", "fieldSelector=metadata.name=a", "labelSelector=a in (b)", "fieldManager=f", "force=true",
    "dryRun=All", "a", "openapi", "v2", "v3", "version", "healthz",
];

impl Word {
    fn text(&self) -> String {
        match self {
            Self::Known(number) => KNOWN[usize::from(*number) % KNOWN.len()].to_owned(),
            Self::Made(text) => text.clone(),
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Request {
    method: u8,
    path: Vec<Word>,
    query: Vec<Word>,
    content_type: u8,
    accept: Option<String>,
    body: Body,
}

#[derive(Arbitrary, Debug)]
enum Body {
    Bytes(Vec<u8>),
    /// An object with a kind that fits some path, and any content.
    Object { kind: u8, name: Word, rest: String },
}

const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const TYPES: [&str; 7] = [
    "application/json",
    "application/yaml",
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf",
];
const KINDS: [(&str, &str); 6] = [
    ("v1", "Pod"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("apps/v1", "StatefulSet"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("policy/v1", "Eviction"),
];

impl Body {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Object { kind, name, rest } => {
                let (version, kind) = KINDS[usize::from(*kind) % KINDS.len()];
                let name = name.text();
                format!(r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"name":"{name}"}},{rest}}}"#).into()
            }
        }
    }
}

fn server() -> &'static (tokio::runtime::Runtime, Cluster) {
    static SERVER: OnceLock<(tokio::runtime::Runtime, Cluster)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let cluster = runtime.block_on(Cluster::builder().start()).expect("a server");
        (runtime, cluster)
    })
}

fuzz_target!(|request: Request| {
    let (runtime, cluster) = server();
    let path: String = request.path.iter().map(|word| format!("/{}", word.text())).collect();
    let query: Vec<String> = request.query.iter().map(Word::text).collect();
    let uri = format!("/{}?{}", path.trim_start_matches('/'), query.join("&"));
    let built = http::Request::builder()
        .method(METHODS[usize::from(request.method) % METHODS.len()])
        .uri(uri)
        .header("content-type", TYPES[usize::from(request.content_type) % TYPES.len()])
        .header("accept", request.accept.as_deref().unwrap_or("application/json"))
        .body(kube::client::Body::from(request.body.bytes()));
    let Ok(built) = built else { return }; // not a request that any client could send
    runtime.block_on(async {
        let client = cluster.client();
        let sent = tokio::time::timeout(Duration::from_secs(10), client.send(built));
        assert!(sent.await.is_ok(), "no answer");
    });
});
