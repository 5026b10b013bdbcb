//! The engine on an embedded Kubernetes, with real pods.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use embedded_kube::{Cluster, ImageSource};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt};
use serde_json::json;
use stateward_example::api::{Mirror, MirrorSpec, MirrorStatus};
use stateward_example::driver::MirrorDriver;
use stateward_runtime::{Driver, Leadership, Runtime, crds};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "example.stateward.dev/mirror:1";

/// Waits until the status is as wanted, for a minute at most.
async fn until(client: &Client, what: &str, wanted: impl Fn(&MirrorStatus) -> bool) -> MirrorStatus {
    let mirrors: Api<Mirror> = Api::namespaced(client.clone(), "default");
    let mut last = None;
    for _ in 0..600 {
        let mirror = mirrors.get("m").await.expect("the Mirror is there");
        if let Some(status) = mirror.status.clone().filter(&wanted) {
            return status;
        }
        last = mirror.status;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("waited for {what}: {last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_outlives_its_primary() {
    // given the operator and a Mirror of three
    let folder = tempfile::tempdir().expect("a folder");
    let program = Path::new(env!("CARGO_BIN_EXE_mirror"));
    let image = ImageSource::program(IMAGE, ("mirror", program), folder.path()).expect("the program");
    let kube = Cluster::builder()
        .nodes(1)
        .images(image)
        .start()
        .await
        .expect("an embedded Kubernetes");
    let client = kube.client();
    crds::bring_up_to_date(&client, vec![Mirror::crd()])
        .await
        .expect("the definition");
    let stop = CancellationToken::new();
    let runtime = Runtime::new(client.clone(), None, Leadership::alone(), stop.clone());
    let driver = Arc::new(MirrorDriver::new(runtime, IMAGE));
    let watches = tokio::spawn(driver.clone().watches());
    let mirrors: Api<Mirror> = Api::namespaced(client.clone(), "default");
    let spec = MirrorSpec {
        size: 3,
        text: "the file".into(),
    };
    let made = mirrors.create(&PostParams::default(), &Mirror::new("m", spec)).await;
    made.expect("made");
    let status = until(&client, "three to serve", |status| status.serving == 3).await;
    // when the primary is lost
    let primary = status.primary.expect("a primary");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.delete(&primary, &DeleteParams::default().grace_period(0))
        .await
        .expect("deleted");
    // then another takes its place, and all serve the same file again
    let is_whole = |status: &MirrorStatus| status.serving == 3 && status.primary.as_ref() != Some(&primary);
    until(&client, "another primary", is_whole).await;
    // and when it shrinks, the pods that are too many go
    let patch = Patch::Merge(json!({"spec": {"size": 1}}));
    mirrors
        .patch("m", &PatchParams::default(), &patch)
        .await
        .expect("patched");
    until(&client, "one to serve", |status| {
        status.serving == 1 && status.waiting.is_empty()
    })
    .await;
    stop.cancel();
    driver.runtime.workers.ended(Duration::from_secs(20)).await;
    watches.abort();
    kube.stop().await;
}
