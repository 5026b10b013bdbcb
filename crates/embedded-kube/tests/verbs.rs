//! The verbs of kubectl that need no running pod, run with every available kubectl; the others are in the walk-through.

mod support;

use embedded_kube::Cluster;

use support::kubectl::{Kubectl, kubectls};

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.harbour.example.com}
spec:
  group: harbour.example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, shortNames: [bt], categories: [floating]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.crew, statusReplicasPath: .status.crew}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              crew: {type: integer, minimum: 1, description: How many people sail it.}
          status: {type: object, properties: {crew: {type: integer}}}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn every_verb() {
    let cluster = Cluster::builder().start().await.unwrap();
    for (number, program) in kubectls().iter().enumerate() {
        let namespace = format!("verbs-{number}");
        let kubectl = Kubectl::new(program, &cluster.kubeconfig_yaml(), &namespace);
        kubectl.run(&format!("create namespace {namespace}")).await;
        writing(&kubectl).await;
        asking(&kubectl, &namespace).await;
        custom(&kubectl).await;
        leaving(&kubectl).await;
    }
    cluster.stop().await;
}

async fn value(kubectl: &Kubectl, path: &str) -> String {
    kubectl.run(&format!("get configmap notes -o jsonpath={path}")).await
}

async fn writing(kubectl: &Kubectl) {
    let notes = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {word: first, other: stays}\n";
    kubectl.with("apply -f -", &[], notes).await;
    kubectl.run("edit configmap notes").await;
    assert_eq!(value(kubectl, "{.data.word}").await, "second");
    kubectl.run("label configmap notes colour=blue").await;
    let (overwritten, why) = kubectl.try_with("label configmap notes colour=red", &[], "").await;
    assert!(!overwritten && why.contains("--overwrite"), "{why}");
    kubectl.run("label configmap notes colour=red --overwrite").await;
    assert_eq!(
        kubectl.run("get configmap -l colour=red -o name").await.trim(),
        "configmap/notes"
    );
    kubectl.run("label configmap notes colour-").await;
    kubectl.run("annotate configmap notes told=yes").await;
    assert_eq!(
        value(kubectl, "{.metadata.labels.colour}:{.metadata.annotations.told}").await,
        ":yes"
    );

    kubectl
        .with("patch configmap notes -p", &[r#"{"data":{"by":"strategic"}}"#], "")
        .await;
    kubectl
        .with(
            "patch configmap notes --type=merge -p",
            &[r#"{"data":{"by":"merge","other":null}}"#],
            "",
        )
        .await;
    kubectl
        .with(
            "patch configmap notes --type=json -p",
            &[r#"[{"op":"add","path":"/data/also","value":"json"}]"#],
            "",
        )
        .await;
    assert_eq!(
        value(kubectl, "{.data.by}:{.data.other}:{.data.also}").await,
        "merge::json"
    );

    let mine = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {by: me}\n";
    let (taken, why) = kubectl.try_with("apply --server-side -f -", &[], mine).await;
    assert!(!taken && why.contains("conflict"), "{why}");
    kubectl
        .with("apply --server-side --force-conflicts -f -", &[], mine)
        .await;
    assert_eq!(value(kubectl, "{.data.by}").await, "me");
    let (same, difference) = kubectl.try_with("diff -f -", &[], &mine.replace("me}", "you}")).await;
    assert!(!same && difference.contains("+  by: you"), "{difference}");
    kubectl
        .with(
            "replace -f -",
            &[],
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {new: all}\n",
        )
        .await;
    assert_eq!(value(kubectl, "{.data}").await, r#"{"new":"all"}"#);
    let (wrong, why) = kubectl
        .try_with(
            "apply -f -",
            &[],
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n",
        )
        .await;
    assert!(!wrong && why.contains("metadata.name"), "{why}");
    kubectl.run("create secret generic key --from-literal=a=b").await;
    assert_eq!(kubectl.run("get secret key -o jsonpath={.data.a}").await, "Yg==");
}

async fn asking(kubectl: &Kubectl, namespace: &str) {
    let explained = kubectl.run("explain pod.spec.containers.image").await;
    assert!(explained.contains("Container image name"), "{explained}");
    let explained = kubectl.run("explain statefulset.spec --recursive").await;
    assert!(explained.contains("volumeClaimTemplates"), "{explained}");
    assert_eq!(kubectl.run("auth can-i delete pods").await.trim(), "yes");
    let nobody = format!("auth can-i delete pods --as=system:serviceaccount:{namespace}:default");
    let (may, said) = kubectl.try_with(&nobody, &[], "").await;
    assert!(!may && said.contains("no"), "{said}");
    let listed = kubectl.run("auth can-i --list").await;
    assert!(listed.contains("*.*"), "{listed}");
    let resources = kubectl.run("api-resources").await;
    assert!(
        resources.contains("statefulsets") && resources.contains("sts"),
        "{resources}"
    );
    assert!(kubectl.run("api-versions").await.contains("apps/v1"));
    assert!(kubectl.run("version").await.contains("Server Version"));
    assert!(kubectl.run("get --raw /readyz").await.contains("ok"));
    assert!(kubectl.run("cluster-info").await.contains("running at"));
    let described = kubectl.run("describe configmap notes").await;
    assert!(described.contains("new:") && described.contains("all"), "{described}");
    let wide = kubectl.run("get configmap,secret -o wide --show-labels").await;
    assert!(
        wide.contains("configmap/notes") && wide.contains("secret/key"),
        "{wide}"
    );
}

async fn custom(kubectl: &Kubectl) {
    kubectl.with("apply -f -", &[], DEFINITION).await;
    kubectl
        .run("wait --for=condition=Established crd/boats.harbour.example.com --timeout=30s")
        .await;
    let boat = "apiVersion: harbour.example.com/v1\nkind: Boat\nmetadata: {name: anna}\nspec: {crew: 2}\n";
    kubectl.with("apply -f -", &[], boat).await;
    kubectl.run("scale boat anna --replicas=4").await;
    assert_eq!(kubectl.run("get bt anna -o jsonpath={.spec.crew}").await, "4");
    assert!(kubectl.run("get floating").await.contains("anna"));
    let explained = kubectl.run("explain boat.spec.crew").await;
    assert!(explained.contains("How many people sail it"), "{explained}");
    let (sails, why) = kubectl
        .try_with("apply -f -", &[], &boat.replace("crew: 2", "crew: 0"))
        .await;
    assert!(!sails && why.contains("spec.crew"), "{why}");
}

async fn leaving(kubectl: &Kubectl) {
    kubectl.run("delete boat anna").await;
    kubectl.run("delete configmap notes").await;
    let (found, said) = kubectl.try_with("get configmap notes", &[], "").await;
    assert!(!found && said.contains("NotFound"), "{said}");
    kubectl.run("delete crd boats.harbour.example.com --timeout=60s").await;
    kubectl.run("delete secret --all").await;
}
