//! CustomResourceDefinitions as clients see them.

use std::time::Duration;

use embedded_kube::Cluster;
use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["things"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 1, "maximum": 7},
                        "colour": {"type": "string", "default": "red"},
                    }, "x-kubernetes-validations": [{"rule": "self.size != 4", "message": "four is unlucky"}]},
                    "status": {"type": "object", "properties": {"size": {"type": "integer"}}},
                }}},
            }],
        },
    }))
    .unwrap()
}

fn widget(name: &str, spec: Value) -> DynamicObject {
    serde_json::from_value(
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}),
    )
    .unwrap()
}

#[tokio::test]
async fn a_definition_serves_at_once_and_its_objects_follow_its_schema() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let made = crds.create(&PostParams::default(), &definition()).await.unwrap();
    let conditions = made.status.unwrap().conditions.unwrap();
    assert!(
        conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
    );
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Widget"), "widgets");
    let widgets: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);

    // Defaults and pruning.
    let params = PostParams::default();
    let made = widgets
        .create(&params, &widget("a", json!({"size": 3, "nonsense": true})))
        .await
        .unwrap();
    assert_eq!(made.data["spec"], json!({"size": 3, "colour": "red"}));
    assert_eq!(made.metadata.generation, Some(1));

    // Schema and CEL.
    for (spec, text) in [
        (
            json!({"size": 9}),
            "spec.size in body should be less than or equal to 7",
        ),
        (json!({"size": 4}), "four is unlucky"),
        (json!({}), "spec.size: Required value"),
    ] {
        let refused = widgets.create(&params, &widget("b", spec)).await.unwrap_err();
        assert!(refused.to_string().contains(text), "{refused}");
    }

    // The status is separate, and so is the generation.
    let status = Patch::Merge(json!({"status": {"size": 3}, "spec": {"size": 5}}));
    let changed = widgets
        .patch_status("a", &PatchParams::default(), &status)
        .await
        .unwrap();
    assert_eq!(
        (&changed.data["spec"]["size"], &changed.data["status"]["size"]),
        (&json!(3), &json!(3))
    );
    assert_eq!(changed.metadata.generation, Some(1));
    let scale = widgets
        .patch_scale(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"replicas": 5}})),
        )
        .await;
    assert_eq!(scale.unwrap().spec.unwrap().replicas, Some(5));
    assert_eq!(widgets.get("a").await.unwrap().metadata.generation, Some(2));

    // Deleting the definition deletes its objects, and waits for their finalizers.
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    widgets.patch("a", &PatchParams::default(), &hold).await.unwrap();
    crds.delete("widgets.example.com", &DeleteParams::default())
        .await
        .unwrap();
    kube::runtime::wait::await_condition(widgets.clone(), "a", |o: Option<&DynamicObject>| {
        o.is_some_and(|o| o.metadata.deletion_timestamp.is_some())
    })
    .await
    .unwrap();
    assert!(crds.get_opt("widgets.example.com").await.unwrap().is_some());
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    widgets.patch("a", &PatchParams::default(), &free).await.unwrap();
    kube::runtime::wait::await_condition(crds, "widgets.example.com", |o: Option<&CustomResourceDefinition>| {
        o.is_none()
    })
    .await
    .unwrap();
    assert!(
        widgets
            .get("a")
            .await
            .unwrap_err()
            .to_string()
            .contains("could not find")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_is_served_as_soon_as_a_watch_shows_its_definition() {
    // given a watch of the definitions
    let cluster = Cluster::start().await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let changes = crds.watch(&WatchParams::default(), "0").await.unwrap();
    futures::pin_mut!(changes);
    for number in 0..20 {
        // when it shows a new one
        let mut definition = definition();
        definition.metadata.name = Some(format!("widget{number}s.example.com"));
        definition.spec.names.plural = format!("widget{number}s");
        definition.spec.names.kind = format!("Widget{number}");
        definition.spec.names.short_names = None;
        let writer = crds.clone();
        let written = tokio::spawn(async move { writer.create(&PostParams::default(), &definition).await });
        let shown = tokio::time::timeout(Duration::from_secs(60), changes.next()).await;
        assert!(matches!(shown, Ok(Some(Ok(WatchEvent::Added(_))))), "{shown:?}");
        // then its kind is served, whether or not its writer has been answered
        let path = format!("/apis/example.com/v1/widget{number}s");
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let listed = cluster.client().request::<Value>(request).await;
        assert!(listed.is_ok(), "{listed:?}");
        written.await.unwrap().unwrap();
    }
}
