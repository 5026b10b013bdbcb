//! A Secret that the cluster did not make is never written, owned or used, whatever its name.

mod support;

use std::collections::BTreeMap;

use embedded_kube::Cluster;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Client;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use stateward_etcd::api::EtcdCluster;
use support::{Operator, api, create, degraded, edit, until};

/// A Secret as a person makes it: with an authority that could be signed with.
async fn made_by_the_user(client: &Client, name: &str) -> Secret {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let text = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: kube::core::ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([("team".to_owned(), "mine".to_owned())])),
            ..Default::default()
        },
        data: Some(BTreeMap::from([
            ("tls.crt".to_owned(), text(&certificate)),
            ("tls.key".to_owned(), text(&key.serialize_pem())),
        ])),
        ..Secret::default()
    };
    let made = api(client).create(&PostParams::default(), &secret).await;
    made.expect("the user's Secret")
}

async fn is_untouched(client: &Client, before: &Secret) {
    let name = before.metadata.name.as_deref().unwrap_or_default();
    let now = api::<Secret>(client).get(name).await.expect("the user's Secret");
    assert_eq!(&now, before, "{name} was touched");
}

async fn pods(client: &Client) -> Vec<Pod> {
    let ours = ListParams::default().labels("app=etcd,etcd_cluster");
    api::<Pod>(client).list(&ours).await.expect("pods").items
}

async fn delete(client: &Client, name: &str) {
    let deleted = api::<Secret>(client).delete(name, &DeleteParams::default()).await;
    deleted.expect("deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_a_secret_of_the_user_has_is_told_and_the_secret_left_alone() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let operator = Operator::start(client.clone());
    let authority = made_by_the_user(&client, "my-ca").await;
    let taken = ["ca", "peer-ca", "peer", "server", "client"];
    for (number, role) in taken.into_iter().enumerate() {
        // Given a Secret of the user's under a name that the cluster would write,
        let name = format!("c{number}");
        let theirs = made_by_the_user(&client, &format!("{name}-{role}-tls")).await;
        // when the cluster is made, with a CA of its own or with the user's,
        let auto = if role == "server" {
            json!({"caSecret": "my-ca"})
        } else {
            json!({})
        };
        create(&client, &name, json!({"size": 1, "TLS": {"auto": auto}})).await;
        // then it names the Secret and the way out,
        let message = degraded(&client, &name, "NameTaken").await;
        let secret = theirs.metadata.name.as_deref().unwrap_or_default();
        for word in [secret, "delete it", "another name for the cluster", "TLS.static"] {
            assert!(message.contains(word), "{word} is not in: {message}");
        }
        assert!(pods(&client).await.is_empty(), "a pod was made");
        // and neither the cluster's end nor anything else touches it.
        is_untouched(&client, &theirs).await;
        let gone = api::<EtcdCluster>(&client)
            .delete(&name, &DeleteParams::default())
            .await;
        gone.expect("deleted");
    }
    is_untouched(&client, &authority).await;

    // Deleted, the cluster goes on by itself.
    made_by_the_user(&client, "d-server-tls").await;
    create(&client, "d", json!({"size": 1, "TLS": {"auto": {}}})).await;
    degraded(&client, "d", "NameTaken").await;
    delete(&client, "d-server-tls").await;
    until("the first pod", async || pods(&client).await.pop()).await;
    operator.stop().await;
    kube.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_user_that_takes_the_place_of_ours_is_told_and_never_adopted() {
    let kube = Cluster::start().await.expect("an embedded Kubernetes");
    let client = kube.client();
    let operator = Operator::start(client.clone());
    create(&client, "c", json!({"size": 1, "TLS": {"auto": {}}})).await;
    let pod = until("the first pod", async || pods(&client).await.pop()).await;
    for role in ["ca", "server"] {
        // When the user puts a Secret in the place of ours,
        let name = format!("c-{role}-tls");
        delete(&client, &name).await;
        let theirs = until("its place to be free", async || {
            // the operator may be faster and make it again
            match api::<Secret>(&client).get_opt(&name).await.expect("an answer") {
                Some(_) => {
                    delete(&client, &name).await;
                    None
                }
                None => Some(()),
            }
        });
        theirs.await;
        let theirs = until("the user's Secret", async || {
            let made = api::<Secret>(&client).get_opt(&name).await.expect("an answer");
            if let Some(made) = made {
                if made.metadata.owner_references.is_none() {
                    return Some(made);
                }
                delete(&client, &name).await;
            }
            let text = json!({"metadata": {"name": name}, "data": {"tls.crt": "eA==", "tls.key": "eA=="}});
            let secret: Secret = serde_json::from_value(text).expect("a Secret");
            let _ = api::<Secret>(&client).create(&PostParams::default(), &secret).await;
            None
        })
        .await;
        // then it is told, a rotation does not write it, and the pod stays.
        let message = degraded(&client, "c", "NameTaken").await;
        assert!(message.contains(&name), "{message}");
        edit(
            &client,
            "c",
            json!({"metadata": {"annotations": {"stateward.dev/rotate-ca": role}}}),
        )
        .await;
        until("the edit to be seen", async || {
            let cluster = api::<EtcdCluster>(&client).get("c").await.ok()?;
            (cluster.status?.observed_generation == cluster.metadata.generation).then_some(())
        })
        .await;
        is_untouched(&client, &theirs).await;
        let now: Vec<_> = pods(&client).await.into_iter().map(|pod| pod.metadata.uid).collect();
        assert_eq!(now, std::slice::from_ref(&pod.metadata.uid));
        // Gone, Stateward makes its own again.
        delete(&client, &name).await;
        until("our Secret", async || {
            let made = api::<Secret>(&client).get_opt(&name).await.ok()??;
            made.metadata.owner_references.is_some().then_some(())
        })
        .await;
    }
    operator.stop().await;
    kube.stop().await;
}
