//! Members have a CA of their own, and a cluster of an earlier version gets one with its next rotation, not before.

mod support;

use std::collections::BTreeSet;

use embedded_kube::Cluster;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use support::{Operator, api, create, edit, until};

async fn pod_of(client: &Client, cluster: &str) -> Option<Pod> {
    let ours = ListParams::default().labels(&format!("app=etcd,etcd_cluster={cluster}"));
    api::<Pod>(client).list(&ours).await.expect("pods").items.pop()
}

async fn file(client: &Client, secret: &str, key: &str) -> Option<String> {
    let data = api::<Secret>(client).get_opt(secret).await.expect("an answer")?.data?;
    Some(String::from_utf8_lossy(&data.get(key)?.0).into_owned())
}

/// The certificates of a file.
fn certificates(file: &str) -> BTreeSet<String> {
    let blocks = file.split("-----BEGIN CERTIFICATE-----").skip(1);
    blocks.map(|block| block.trim().to_owned()).collect()
}

async fn merge<K>(client: &Client, name: &str, patch: Value)
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let patched = api::<K>(client)
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched.expect("patched");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_have_a_ca_of_their_own() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let operator = Operator::start(client.clone());
    // Given a cluster with a CA of ours, and one with the user's,
    create(&client, "c", json!({"size": 1, "TLS": {"auto": {}}})).await;
    until("its pod", async || pod_of(&client, "c").await).await;
    let ca = file(&client, "c-ca-tls", "tls.crt").await.expect("a CA");
    let text = json!({"metadata": {"name": "mine"}, "stringData": {
        "tls.crt": ca, "tls.key": file(&client, "c-ca-tls", "tls.key").await,
    }});
    let mine: Secret = serde_json::from_value(text).expect("a Secret");
    api(&client).create(&PostParams::default(), &mine).await.expect("made");
    create(&client, "d", json!({"size": 1, "TLS": {"auto": {"caSecret": "mine"}}})).await;
    until("its pod", async || pod_of(&client, "d").await).await;
    for cluster in ["c", "d"] {
        // then members trust one for each other that signs nothing else.
        let own = file(&client, &format!("{cluster}-peer-ca-tls"), "tls.crt")
            .await
            .expect("a CA");
        let peers = file(&client, &format!("{cluster}-peer-tls"), "peer-ca.crt")
            .await
            .expect("a file");
        assert_eq!(certificates(&peers), certificates(&own));
        for (secret, key) in [("server-tls", "server-ca.crt"), ("client-tls", "etcd-client-ca.crt")] {
            let trusted = file(&client, &format!("{cluster}-{secret}"), key)
                .await
                .expect("a file");
            assert_eq!(certificates(&trusted), certificates(&ca));
        }
        assert_ne!(certificates(&own), certificates(&ca));
    }
    operator.stop().await;
    kube.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_an_earlier_version_keeps_its_one_ca_until_the_next_rotation() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let operator = Operator::start(client.clone());
    create(&client, "c", json!({"size": 1, "TLS": {"auto": {}}})).await;
    let pod = until("its pod", async || pod_of(&client, "c").await).await;
    operator.stop().await;
    // Given Secrets and a pod as an earlier version made them, with one CA for members and clients,
    let secrets = api::<Secret>(&client);
    let deleted = secrets.delete("c-peer-ca-tls", &DeleteParams::default()).await;
    deleted.expect("deleted");
    let old = file(&client, "c-ca-tls", "tls.crt").await.expect("a CA");
    let server = secrets.get("c-server-tls").await.expect("a Secret");
    let one = server.metadata.annotations.unwrap_or_default()["stateward.dev/issued-by"].clone();
    let issued =
        json!({"metadata": {"annotations": {"stateward.dev/issued-by": one}}, "stringData": {"peer-ca.crt": old}});
    merge::<Secret>(&client, "c-peer-tls", issued).await;
    let trusts =
        json!({"metadata": {"annotations": {"stateward.dev/trusted-authorities": format!("client/{one},peer/{one}")}}});
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    assert!(
        pod.metadata
            .annotations
            .iter()
            .flatten()
            .any(|(key, _)| key == "stateward.dev/trusted-authorities")
    );
    merge::<Pod>(&client, name, trusts).await;
    let before = secrets.get("c-peer-tls").await.expect("a Secret");
    // when this version starts and has looked at it,
    let operator = Operator::start(client.clone());
    create(&client, "beside", json!({"size": 1, "TLS": {"auto": {}}})).await;
    until("the operator to be at work", async || pod_of(&client, "beside").await).await;
    // then it is left as it is,
    assert!(file(&client, "c-peer-ca-tls", "tls.crt").await.is_none());
    assert_eq!(secrets.get("c-peer-tls").await.expect("a Secret"), before);
    assert_eq!(
        pod_of(&client, "c").await.and_then(|pod| pod.metadata.uid),
        pod.metadata.uid
    );
    // until a rotation is asked for: members and clients then learn to trust two new ones beside the old one.
    edit(
        &client,
        "c",
        json!({"metadata": {"annotations": {"stateward.dev/rotate-ca": "now"}}}),
    )
    .await;
    until("both to be trusted beside the old one", async || {
        let peer = certificates(&file(&client, "c-peer-ca-tls", "tls.crt").await?);
        let clients = certificates(&file(&client, "c-ca-tls", "tls.crt").await?);
        let old = certificates(&old);
        let peers_trust = certificates(&file(&client, "c-peer-tls", "peer-ca.crt").await?);
        let servers_trust = certificates(&file(&client, "c-server-tls", "server-ca.crt").await?);
        let both = |new: &BTreeSet<String>| old.union(new).cloned().collect::<BTreeSet<_>>();
        (peer != clients && clients != old && peers_trust == both(&peer) && servers_trust == both(&clients))
            .then_some(())
    })
    .await;
    operator.stop().await;
    kube.stop().await;
}
