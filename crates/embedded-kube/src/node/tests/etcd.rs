//! Three real etcd members that find each other by name and check each other's certificates by name.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret, Service};

use super::*;

const DOMAIN: &str = "etcd.default.svc.cluster.local";

/// Where etcd is: a folder with one folder a version, given by whoever runs the tests.
fn etcd_folder() -> Option<std::path::PathBuf> {
    std::env::var_os("EMBEDDED_KUBE_ETCD_DIR").map(Into::into)
}

fn newest(folder: &std::path::Path) -> String {
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let version = |name: &String| {
        name.split('.')
            .map(|part| part.parse::<u32>().unwrap_or(0))
            .collect::<Vec<_>>()
    };
    names.max_by_key(version).unwrap()
}

fn image(folder: &std::path::Path, version: &str) -> ImageSource {
    ImageSource::One {
        reference: format!("quay.io/coreos/etcd:v{version}"),
        image: crate::Image::programs(folder.join(version)),
    }
}

async fn create_all<K>(client: &Client, objects: Vec<Value>)
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + serde::Serialize
        + Clone
        + std::fmt::Debug,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    for object in objects {
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
            .await
            .unwrap();
    }
}

/// A claim bound to a folder, as the claims' controller would leave it.
async fn claim(client: &Client, name: &str, folder: &std::path::Path) {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let access = json!(["ReadWriteOnce"]);
    let volume = json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": access,
        "hostPath": {"path": folder}}});
    volumes
        .create(&PostParams::default(), &serde_json::from_value(volume).unwrap())
        .await
        .unwrap();
    create_all::<PersistentVolumeClaim>(
        client,
        vec![
            json!({"metadata": {"name": name}, "spec": {"volumeName": name, "accessModes": access,
            "resources": {"requests": {"storage": "1Gi"}}}}),
        ],
    )
    .await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let bound = json!({"status": {"phase": "Bound"}});
    claims
        .patch_status(name, &PatchParams::default(), &Patch::Merge(bound))
        .await
        .unwrap();
}

/// Certificates that name only a member's own name and no address.
fn certificates() -> (String, Vec<(String, String)>) {
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let root = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let members = (0..3).map(|number| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![format!("etcd-{number}.{DOMAIN}")]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    });
    (root.pem(), members.collect())
}

fn member(number: usize, version: &str) -> Value {
    let peers = (0..3)
        .map(|n| format!("etcd-{n}=https://etcd-{n}.{DOMAIN}:2380"))
        .collect::<Vec<_>>()
        .join(",");
    json!({"metadata": {"name": format!("etcd-{number}"), "labels": {"app": "etcd"}}, "spec": {
        "nodeName": format!("node-{number}"), "hostname": format!("etcd-{number}"), "subdomain": "etcd",
        "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": true, "fsGroup": 1000},
        "containers": [{
            "name": "etcd", "image": format!("quay.io/coreos/etcd:v{version}"),
            "securityContext": {"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false},
            "command": ["/usr/local/bin/etcd", "--name=$(NAME)", "--data-dir=/data/etcd", "--initial-cluster-state=new",
                "--initial-cluster-token=t", format!("--initial-cluster={peers}"),
                "--listen-peer-urls=https://0.0.0.0:2380", "--listen-client-urls=http://0.0.0.0:2379",
                format!("--initial-advertise-peer-urls=https://$(NAME).{DOMAIN}:2380"),
                format!("--advertise-client-urls=http://$(NAME).{DOMAIN}:2379"),
                "--peer-client-cert-auth", "--peer-trusted-ca-file=/tls/ca.crt",
                "--peer-cert-file=/tls/tls.crt", "--peer-key-file=/tls/tls.key"],
            "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "ports": [{"name": "client", "containerPort": 2379}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": "client"}, "periodSeconds": 2},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tls", "mountPath": "/tls"}],
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{number}")}},
            {"name": "tls", "secret": {"secretName": format!("tls-{number}")}}],
    }})
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_serve_and_survive() {
    let folder =
        etcd_folder().expect("EMBEDDED_KUBE_ETCD_DIR names a folder with one folder an etcd version; ./x test sets it");
    let version = newest(&folder);
    let ground = Ground::with(|options| options.images.push(image(&folder, &version))).await;
    let (authority, members) = certificates();
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    for (number, (certificate, key)) in members.iter().enumerate() {
        claim(
            &ground.client,
            &format!("data-{number}"),
            &ground._folder.path().join(format!("data-{number}")),
        )
        .await;
        let data = json!({"ca.crt": bytes(&authority), "tls.crt": bytes(certificate), "tls.key": bytes(key)});
        create_all::<Secret>(
            &ground.client,
            vec![json!({"metadata": {"name": format!("tls-{number}")}, "data": data})],
        )
        .await;
    }
    create_all::<Service>(
        &ground.client,
        vec![
            json!({"metadata": {"name": "etcd"}, "spec": {"clusterIP": "None", "publishNotReadyAddresses": true,
                "selector": {"app": "etcd"}, "ports": [{"name": "peer", "port": 2380}]}}),
            json!({"metadata": {"name": "etcd-client"}, "spec": {"selector": {"app": "etcd"},
                "ports": [{"name": "client", "port": 2379, "targetPort": "client"}]}}),
        ],
    )
    .await;
    // When three members start at once
    let begun = std::time::Instant::now();
    for number in 0..3 {
        ground.create(member(number, &version)).await;
    }
    let mut pods = Vec::new();
    for number in 0..3 {
        pods.push(ground.until(&format!("etcd-{number}"), "ready", ready).await);
    }
    println!("three members of etcd {version} ready after {:?}", begun.elapsed());
    // Then a client in a pod reaches them through the service, by its short name
    let ctl = async |words: &str| {
        let command = format!("etcdctl --endpoints=http://etcd-client:2379 {words}");
        ground.exec(&pods[0], &["sh", "-c", &command]).await
    };
    let written = ctl("put key value").await;
    assert_eq!((written.0, written.1.trim()), (0, "OK"), "{written:?}");
    let listed = ctl("endpoint status --cluster").await;
    assert_eq!((listed.0, listed.1.lines().count()), (0, 3), "{listed:?}");
    // And one on the machine by its address
    let services: Api<Service> = Api::namespaced(ground.client.clone(), "default");
    let address = services
        .get("etcd-client")
        .await
        .unwrap()
        .spec
        .unwrap()
        .cluster_ip
        .unwrap();
    tokio::net::TcpStream::connect(format!("{address}:2379")).await.unwrap();
    // When one is killed, then it is back as the same member
    let killed = std::time::Instant::now();
    ground.nodes.faults().kill("default", "etcd-1", None, 9).await.unwrap();
    ground
        .until("etcd-1", "back", |pod| restarts(pod) == 1 && ready(pod))
        .await;
    println!("a killed member ready again after {:?}", killed.elapsed());
    // When a node is lost for a while, then the others serve, and it comes back with its data
    ground.nodes.faults().stop_node("node-2").await.unwrap();
    let get = [
        "etcdctl",
        "--endpoints=localhost:2379",
        "get",
        "key",
        "--print-value-only",
    ];
    // Where the lost one was the leader, an election comes first.
    let read = async { while ground.exec(&pods[0], &get).await != (0, "value\n".to_string()) {} };
    tokio::time::timeout(PATIENCE, read).await.unwrap();
    ground.nodes.faults().start_node("node-2").await.unwrap();
    ground
        .until("etcd-2", "back", |pod| restarts(pod) == 1 && ready(pod))
        .await;
    let healthy = async { while ctl("endpoint health --cluster").await.0 != 0 {} };
    tokio::time::timeout(PATIENCE, healthy).await.unwrap();
    // A lost volume is really lost
    ground.nodes.faults().lose_volume("default", "data-2").await.unwrap();
    assert!(!ground._folder.path().join("data-2/etcd").exists());
    ground.stop().await;
}
