//! What a StatefulSet asks of the nodes for its pods: hooks, probes, the downward API, init containers that fail; and claims that go with
//! the pods. No part of Stateward is involved: this shows that the environments are alike.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;

use super::stateful_set::Story;
use crate::test::Test;
use crate::wait::until;

/// The liveness probe would fail from the beginning, because its file does not exist: the test creates it.
const MANIFEST: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: web
spec:
  serviceName: nginx
  replicas: 2
  podManagementPolicy: Parallel
  persistentVolumeClaimRetentionPolicy:
    whenScaled: Delete
    whenDeleted: Delete
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 20
      securityContext:
        runAsNonRoot: true
        runAsUser: 101
        fsGroup: 101
        seccompProfile:
          type: RuntimeDefault
      initContainers:
      - name: fails-once
        image: stateward.local/nginx:1.22
        command: [sh, -c, "test -e /shared/tried || { touch /shared/tried; exit 3; }; echo begin > /shared/story"]
        securityContext: &restricted
          allowPrivilegeEscalation: false
          capabilities:
            drop: [ALL]
        volumeMounts:
        - name: shared
          mountPath: /shared
      containers:
      - name: nginx
        image: stateward.local/nginx:1.22
        command: [sh, -c, "trap 'echo terminated >> /data/story; exit 0' TERM; while :; do sleep 1 & wait $!; done"]
        lifecycle:
          postStart:
            exec:
              command: [sh, -c, "echo started >> /data/story"]
          preStop:
            exec:
              command: [sh, -c, "echo stopping >> /data/story"]
        startupProbe:
          exec:
            command: [test, -e, /shared/alive]
          periodSeconds: 1
          failureThreshold: 300
        livenessProbe:
          exec:
            command: [test, -e, /shared/alive]
          periodSeconds: 1
          failureThreshold: 1
        resources:
          limits:
            memory: 64Mi
        securityContext: *restricted
        volumeMounts:
        - name: data
          mountPath: /data
        - name: shared
          mountPath: /shared
        - name: about
          mountPath: /about
      volumes:
      - name: shared
        emptyDir: {}
      - name: about
        downwardAPI:
          items:
          - path: name
            fieldRef:
              fieldPath: metadata.name
          - path: labels
            fieldRef:
              fieldPath: metadata.labels
          - path: memory
            resourceFieldRef:
              containerName: nginx
              resource: limits.memory
              divisor: 1Mi
  volumeClaimTemplates:
  - metadata:
      name: data
    spec:
      accessModes: [ReadWriteOnce]
      resources:
        requests:
          storage: 1Gi
"#;

async fn shell(test: &Test, pod: &str, line: &str) -> Result<String> {
    let words = ["exec", pod, "--container=nginx", "--", "sh", "-c", line];
    Ok(test.kubectl(&words).await?.trim().to_owned())
}

async fn container(test: &Test, pod: &str) -> Result<ContainerStatus> {
    let status = test.pods().get(pod).await?.status.unwrap_or_default();
    let mut all = status.container_statuses.unwrap_or_default();
    all.pop().with_context(|| format!("{pod} has no container yet"))
}

/// Waits until the container of a pod has run for some seconds.
async fn has_run(test: &Test, pod: &str, seconds: i64) -> Result<()> {
    until(&format!("{pod} to run for {seconds} s"), 120, async || {
        let state = container(test, pod).await?.state.unwrap_or_default();
        let since = state.running.and_then(|running| running.started_at);
        let since = since.with_context(|| format!("{pod} does not run"))?;
        let passed = Timestamp::now().duration_since(since.0).as_secs();
        ensure!(passed > seconds, "it has run for {passed} s");
        Ok(Some(()))
    })
    .await
}

/// Lets the probes of a pod succeed.
async fn revive(test: &Test, pod: &str) -> Result<()> {
    shell(test, pod, "touch /shared/alive").await?;
    until(&format!("{pod} to be ready"), 60, async || {
        let status = container(test, pod).await?;
        ensure!(status.started == Some(true), "its startup probe has not succeeded");
        Ok(status.ready.then_some(()))
    })
    .await
}

/// Waits until the hooks and the program of a pod have written this on its claim.
async fn story_is(test: &Test, pod: &str, expected: &str) -> Result<()> {
    until(&format!("{pod} to have written {expected:?}"), 60, async || {
        let found = shell(test, pod, "cat /data/story").await?.replace('\n', " ");
        ensure!(found == expected, "it is {found:?}");
        Ok(Some(()))
    })
    .await
}

/// Waits until a claim is deleted.
async fn claim_gone(test: &Test, name: &str) -> Result<()> {
    until(&format!("{name} to be deleted"), 60, async || {
        Ok(test.claims().get_opt(name).await?.is_none().then_some(()))
    })
    .await
}

/// Whatever a pod template can ask of a node, once.
pub(crate) async fn pod_features(test: &Test) -> Result<String> {
    let story = Story::begin(test, "app=nginx");
    // Given a parallel set, whose second pod is created although the first is not ready
    test.apply(MANIFEST).await?;
    story.tells(60, &["web-0 created", "web-1 created"]).await?;
    // Then an init container that fails is started again before the others
    for pod in ["web-0", "web-1"] {
        has_run(test, pod, 3).await?;
        let found: Pod = test.pods().get(pod).await?;
        let status = found.status.unwrap_or_default();
        let init = status.init_container_statuses.unwrap_or_default();
        let restarts = init.first().map(|init| init.restart_count);
        ensure!(
            restarts == Some(1),
            "{pod}: the init container's restarts are {restarts:?}"
        );
        ensure!(shell(test, pod, "cat /shared/story").await? == "begin");
        // Then the liveness probe, which fails all the time, waits for the startup probe
        let status = container(test, pod).await?;
        ensure!(status.restart_count == 0, "{pod} was restarted: {status:?}");
        ensure!(status.started == Some(false) && !status.ready, "{pod}: {status:?}");
    }
    for pod in ["web-0", "web-1"] {
        revive(test, pod).await?;
    }
    // Then the downward API shows the pod, and follows its labels
    ensure!(shell(test, "web-0", "cat /about/name /about/memory").await? == "web-064");
    test.kubectl(&["label", "pod", "web-0", "extra=label"]).await?;
    until("the new label to be in the volume", 180, async || {
        let labels = shell(test, "web-0", "cat /about/labels").await?;
        ensure!(labels.contains("app=\"nginx\""), "the labels are {labels}");
        Ok(labels.contains("extra=\"label\"").then_some(()))
    })
    .await?;
    // When the liveness probe fails, then the container is stopped with its hook, and started again
    story_is(test, "web-0", "started").await?;
    shell(test, "web-0", "rm /shared/alive").await?;
    until("web-0 to be restarted", 90, async || {
        let status = container(test, "web-0").await?;
        let runs = status.state.is_some_and(|state| state.running.is_some());
        Ok((status.restart_count == 1 && runs).then_some(()))
    })
    .await?;
    story_is(test, "web-0", "started stopping terminated started").await?;
    revive(test, "web-0").await?;
    // When a pod is deleted, then the hook runs before the program is asked to end; the claim stays
    test.kubectl(&["delete", "pod", "web-0"]).await?;
    has_run(test, "web-0", 0).await?;
    story_is(
        test,
        "web-0",
        "started stopping terminated started stopping terminated started",
    )
    .await?;
    revive(test, "web-0").await?;
    // When the set shrinks, then the claim goes with the pod, and when it is deleted, then the others go
    test.kubectl(&["scale", "statefulset/web", "--replicas=1"]).await?;
    claim_gone(test, "data-web-1").await?;
    let left = test.claims().get("data-web-0").await?;
    ensure!(left.metadata.deletion_timestamp.is_none(), "data-web-0 goes, too");
    test.kubectl(&["delete", "statefulset", "web"]).await?;
    claim_gone(test, "data-web-0").await?;
    Ok("hooks, probes, downward API, init container, claims".into())
}
