//! `stateward demo`: the example on an embedded Kubernetes, live; with `--check`, a drill without a terminal.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use stateward_core::conditions::{is_true, types};
use stateward_etcd::api::{EtcdBackup, EtcdCluster, names};
use stateward_etcd_driver::client::Timeouts;
use stateward_etcd_driver::client::messages::RangeRequest;

use crate::local::{Ground, Start, kubectl_off_path};

/// Options of `stateward demo`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Without a terminal: bring it up, use it, scale it, break it, check that nothing was lost, end
    #[arg(long)]
    check: bool,
    /// The manifest to apply
    #[arg(long, default_value = "examples/etcd-cluster.yaml")]
    file: std::path::PathBuf,
}

impl Options {
    /// The drill is a test: its pods reach nothing but the cluster, as in every test.
    fn start(&self) -> Start {
        Start::temporary(!self.check)
    }
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let text =
        std::fs::read_to_string(&options.file).with_context(|| format!("cannot read {}", options.file.display()))?;
    let cluster: EtcdCluster =
        serde_yaml_ng::from_str(&text).with_context(|| format!("{} is not an EtcdCluster", options.file.display()))?;
    let ground = Ground::start(options.start()).await?;
    let result = if options.check {
        check(&ground, cluster).await
    } else {
        live(&ground, cluster).await
    };
    ground.stop().await;
    result
}

/// A cluster that is being shown.
struct Shown {
    clusters: Api<EtcdCluster>,
    pods: Api<Pod>,
    services: Api<Service>,
    name: String,
}

impl Shown {
    async fn create(client: &Client, cluster: EtcdCluster) -> Result<Self> {
        let namespace = cluster.metadata.namespace.clone().unwrap_or_else(|| "default".into());
        let clusters: Api<EtcdCluster> = Api::namespaced(client.clone(), &namespace);
        let name = cluster.name().to_owned();
        clusters
            .create(&PostParams::default(), &cluster)
            .await
            .context("cannot apply the example")?;
        Ok(Self {
            clusters,
            pods: Api::namespaced(client.clone(), &namespace),
            services: Api::namespaced(client.clone(), &namespace),
            name,
        })
    }

    /// As the spec says, by the status.
    async fn settled(&self) -> Result<Option<EtcdCluster>> {
        let cluster = self.clusters.get(&self.name).await?;
        let status = cluster.status.clone().unwrap_or_default();
        let all = i32::try_from(status.members.ready.len()).is_ok_and(|ready| ready == cluster.spec.size);
        let done = status.observed_generation == cluster.metadata.generation
            && all
            && is_true(&status.conditions, types::AVAILABLE)
            && !is_true(&status.conditions, types::PROGRESSING);
        Ok(done.then_some(cluster))
    }

    async fn wait(&self, seconds: u64, show: impl Fn(&EtcdCluster)) -> Result<EtcdCluster> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            if let Some(cluster) = self.settled().await? {
                return Ok(cluster);
            }
            let cluster = self.clusters.get(&self.name).await?;
            show(&cluster);
            if Instant::now() > deadline {
                bail!("not ready after {seconds} s:\n{}", crate::status::text(&cluster));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What clients in the cluster's network call it.
    fn service_name(&self) -> String {
        let namespace = self.clusters.namespace().unwrap_or("default");
        format!("{}.{namespace}.svc", names::client_service(&self.name))
    }

    async fn endpoint(&self) -> Result<SocketAddr> {
        let service = self.services.get(&names::client_service(&self.name)).await?;
        let address = service
            .spec
            .and_then(|spec| spec.cluster_ip)
            .context("the client service has no address")?;
        Ok(SocketAddr::new(address.parse()?, 2379))
    }

    async fn etcd(&self) -> Result<stateward_etcd_driver::client::Client> {
        let timeouts = Timeouts {
            connect: Duration::from_secs(2),
            request: Duration::from_secs(5),
        };
        Ok(stateward_etcd_driver::client::Client::new(
            self.endpoint().await?,
            None,
            timeouts,
        )?)
    }
}

async fn live(ground: &Ground, cluster: EtcdCluster) -> Result<()> {
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {elapsed:>4} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(100));
    let shown = Shown::create(&ground.client(), cluster).await?;
    let show = |cluster: &EtcdCluster| {
        let status = cluster.status.clone().unwrap_or_default();
        bar.set_message(format!(
            "{} of {} members ready. {}",
            status.ready_members, cluster.spec.size, status.waiting
        ));
    };
    let up = tokio::select! {
        up = shown.wait(300, show) => up?,
        () = crate::operator::stop_signal() => return Ok(()),
    };
    bar.finish_and_clear();
    println!("{}", crate::status::text(&up));
    println!("Use it from another terminal:\n");
    println!("  export KUBECONFIG={}", ground.kubeconfig().display());
    if let Some(folder) = kubectl_off_path() {
        println!("  export PATH=$PATH:{}", folder.display());
    }
    println!("  kubectl get etcd,pods");
    println!(
        "  {} local exec --folder {} -- etcdctl --endpoints={}:2379 put hello world\n",
        std::env::current_exe()?.display(),
        ground.folder().display(),
        shown.service_name()
    );
    println!(
        "Try: kubectl scale etcd/{} --replicas=5, or delete a pod. The operator's log: {}",
        shown.name,
        ground.log().display()
    );
    println!("Ctrl-C ends everything.\n");
    let mut last = String::new();
    loop {
        let text = crate::status::text(&shown.clusters.get(&shown.name).await?);
        if text != last {
            println!("{text}");
            last = text;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
            () = crate::operator::stop_signal() => return Ok(()),
        }
    }
}

/// Prints each step with its time.
struct Steps {
    started: Instant,
}

impl Steps {
    fn done(&mut self, what: &str) {
        println!("{:6.1} s  {what}", self.started.elapsed().as_secs_f64());
        self.started = Instant::now();
    }
}

async fn check(ground: &Ground, cluster: EtcdCluster) -> Result<()> {
    let mut steps = Steps {
        started: Instant::now(),
    };
    let shown = Shown::create(&ground.client(), cluster).await?;
    let up = shown.wait(120, |_| {}).await?;
    steps.done(&format!("{} members serve", up.spec.size));
    let etcd = shown.etcd().await?;
    let mut written = 0;
    write(&etcd, &mut written, 100).await?;
    steps.done("100 keys written through the client service");
    let backup = back_up(&ground.client(), &shown).await?;
    steps.done(&format!("backed up: {backup}"));
    for size in [5, 3] {
        shown
            .clusters
            .patch(
                &shown.name,
                &PatchParams::default(),
                &Patch::Merge(json!({"spec": {"size": size}})),
            )
            .await?;
        shown.wait(120, |_| {}).await?;
        write(&shown.etcd().await?, &mut written, 20).await?;
        steps.done(&format!("scaled to {size} members"));
    }
    let pods = shown
        .pods
        .list(&ListParams::default().labels(&names::selector_text(&shown.name)))
        .await?;
    let victim = pods.items.first().context("no pod")?.name_any();
    ground.kill_pod(&shown.pods, &victim).await?;
    let back = async {
        loop {
            let pod = shown.pods.get(&victim).await?;
            let restarts = pod
                .status
                .and_then(|status| status.container_statuses)
                .and_then(|all| all.first().map(|container| container.restart_count));
            if restarts.is_some_and(|restarts| restarts > 0) && shown.settled().await?.is_some() {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back)
        .await
        .context("the killed member did not come back within 60 s")??;
    steps.done(&format!("killed {victim}; it is back as the same member"));
    let request = RangeRequest {
        key: b"demo/".to_vec(),
        range_end: b"demo0".to_vec(),
        count_only: true,
        ..RangeRequest::default()
    };
    // The killed member may have led: etcd elects another within a second or two.
    let etcd = shown.etcd().await?;
    let found = patient(async || etcd.range(request.clone()).await)
        .await
        .context("cannot read the keys back")?
        .count;
    ensure!(
        found == i64::from(written),
        "{written} keys were acknowledged, {found} are there"
    );
    steps.done(&format!("all {written} acknowledged keys are there"));
    println!("demo ok");
    Ok(())
}

/// One backup into a folder on a claim, which needs no store at all.
async fn back_up(client: &Client, shown: &Shown) -> Result<String> {
    let namespace = shown.clusters.namespace().unwrap_or("default");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = json!({"metadata": {"name": "demo-backups"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    claims
        .create(&PostParams::default(), &serde_json::from_value(claim)?)
        .await?;
    let backups: Api<EtcdBackup> = Api::namespaced(client.clone(), namespace);
    let backup = json!({"apiVersion": "etcd.database.coreos.com/v1beta2", "kind": "EtcdBackup", "metadata": {"name": "demo"},
        "spec": {"clusterRef": {"name": shown.name}, "file": {"claimName": "demo-backups", "path": "etcd.backup"}}});
    backups
        .create(&PostParams::default(), &serde_json::from_value(backup)?)
        .await?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = backups.get("demo").await?.status.unwrap_or_default();
        if let Some(record) = status.backups.first().filter(|_| status.succeeded) {
            return Ok(format!(
                "revision {}, {} bytes, SHA-256 {:.12}",
                record.revision, record.size_bytes, record.sha256
            ));
        }
        ensure!(
            Instant::now() < deadline,
            "no backup after 60 s: {} {}",
            status.reason,
            status.waiting
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn write(etcd: &stateward_etcd_driver::client::Client, written: &mut i32, count: i32) -> Result<()> {
    for _ in 0..count {
        let key = format!("demo/{written:06}");
        patient(async || etcd.put(key.clone(), "value").await)
            .await
            .context("a write failed")?;
        *written += 1;
    }
    Ok(())
}

/// Asks again for a while, as every client of etcd does when a leader changes.
async fn patient<T>(
    ask: impl AsyncFn() -> stateward_etcd_driver::client::Result<T>,
) -> stateward_etcd_driver::client::Result<T> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match ask().await {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_live_demo_lets_pods_out() {
        let options = |check| Options {
            check,
            file: "cluster.yaml".into(),
        };
        assert!(options(false).start().outbound);
        assert!(!options(true).start().outbound);
    }
}
