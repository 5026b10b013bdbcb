//! MySQL in scenarios: clusters, clients that verify certificates, and a writer that finds every acknowledged row.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts};
use serde_json::{Value, json};
use stateward_core::conditions::{self, ConditionStatus, is_true, types};
use stateward_mysql::api::{MemberRole, MySQLClusterStatus};
use stateward_mysql::{MySQLCluster, layout, names};
use tokio_util::sync::CancellationToken;

use crate::test::Test;
use crate::wait::until;

/// The image of the catalogue.
pub(crate) const IMAGE: &str = "mysql:9.7";
/// How long a statement or a connection may take before a client gives it up.
const LIMIT: Duration = Duration::from_secs(2);

impl Test {
    pub(crate) fn mysql_clusters(&self) -> Api<MySQLCluster> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A spec with the image that `./x` built, completed by `more`.
    pub(crate) fn mysql_spec(&self, more: Value) -> Result<Value> {
        let version = crate::environment::provided_version(IMAGE).context("the version of the image is unknown")?;
        let mut spec = json!({"repository": "stateward.local/mysql", "version": version, "storage": {"size": "1Gi"}});
        json_patch::merge(&mut spec, &more);
        Ok(spec)
    }

    /// Creates a MySQLCluster.
    pub(crate) async fn mysql_create(&self, name: &str, more: Value) -> Result<()> {
        let object = json!({"apiVersion": "mysql.stateward.dev/v1alpha1", "kind": "MySQLCluster",
            "metadata": {"name": name}, "spec": self.mysql_spec(more)?});
        let object: MySQLCluster = serde_json::from_value(object)?;
        self.mysql_clusters().create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// Creates a MySQLCluster and waits until it matches its spec.
    pub(crate) async fn mysql(&self, name: &str, more: Value) -> Result<MySQLClusterStatus> {
        self.mysql_create(name, more).await?;
        self.mysql_settled(name, 180).await
    }

    pub(crate) async fn mysql_edit(&self, name: &str, patch: Value) -> Result<()> {
        let edited = self.mysql_clusters();
        edited
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    pub(crate) async fn mysql_status(&self, name: &str) -> Result<MySQLClusterStatus> {
        Ok(self.mysql_clusters().get(name).await?.status.unwrap_or_default())
    }

    /// Waits until the status is as expected.
    pub(crate) async fn mysql_until(
        &self,
        name: &str,
        what: &str,
        seconds: u64,
        expected: impl Fn(&MySQLClusterStatus) -> bool,
    ) -> Result<MySQLClusterStatus> {
        until(&format!("{name}: {what}"), seconds, async || {
            let status = self.mysql_status(name).await?;
            ensure!(expected(&status), "{}", describe(&status));
            Ok(Some(status))
        })
        .await
    }

    /// Waits until the cluster matches its spec, with every member in a role.
    pub(crate) async fn mysql_settled(&self, name: &str, seconds: u64) -> Result<MySQLClusterStatus> {
        until(&format!("{name} to match its spec"), seconds, async || {
            let cluster = self.mysql_clusters().get(name).await?;
            let status = cluster.status.clone().unwrap_or_default();
            let current = status.observed_generation == cluster.metadata.generation;
            ensure!(current && is_whole(&status, cluster.spec.size), "{}", describe(&status));
            Ok(Some(status))
        })
        .await
    }

    async fn mysql_secret(&self, name: &str, key: &str) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut data = secrets.get(name).await?.data.unwrap_or_default();
        let value = data
            .remove(key)
            .with_context(|| format!("Secret {name} has no {key}"))?;
        Ok(String::from_utf8(value.0)?)
    }

    /// How an application connects to a host of the cluster: with the account of `NAME-app`, verifying the certificate.
    pub(crate) async fn mysql_options(&self, cluster: &str, address: &str) -> Result<Opts> {
        let app = names::app_secret(cluster);
        let options = OptsBuilder::default()
            .ip_or_hostname(address)
            .user(Some(self.mysql_secret(&app, "username").await?))
            .pass(Some(self.mysql_secret(&app, "password").await?))
            .db_name(Some(self.mysql_secret(&app, "database").await?))
            .prefer_socket(false);
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        if secrets.get_opt(&names::tls_secret(cluster)).await?.is_none() {
            return Ok(options.into());
        }
        let ca = self.mysql_secret(&names::tls_secret(cluster), layout::TLS_CA).await?;
        let tls = SslOpts::default()
            .with_root_certs(vec![ca.into_bytes().into()])
            .with_disable_built_in_roots(true)
            .with_danger_tls_hostname_override(Some(format!("{cluster}-primary.{}.svc", self.namespace)));
        Ok(options.ssl_opts(Some(tls)).into())
    }

    /// The address of a Service.
    pub(crate) async fn service_address(&self, name: &str) -> Result<String> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let service = services.get(name).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip);
        address.with_context(|| format!("Service {name} has no address"))
    }

    /// The address of a pod.
    pub(crate) async fn pod_address(&self, name: &str) -> Result<String> {
        let pod = self.pods().get(name).await?;
        let address = pod.status.and_then(|status| status.pod_ip);
        address.with_context(|| format!("pod {name} has no address"))
    }

    /// One value, as an application reads it at an address.
    pub(crate) async fn mysql_value(&self, cluster: &str, address: &str, statement: &str) -> Result<String> {
        let options = self.mysql_options(cluster, address).await?;
        let asked = async {
            let mut conn = Conn::new(options).await?;
            let value: Option<String> = conn.query_first(statement).await?;
            conn.disconnect().await?;
            anyhow::Ok(value)
        };
        let value = tokio::time::timeout(Duration::from_secs(5), asked)
            .await
            .context("no reply within 5 s")??;
        value.with_context(|| format!("no row: {statement}"))
    }

    /// The UIDs of a cluster's pods, by name.
    pub(crate) async fn mysql_pod_uids(&self, cluster: &str) -> Result<Vec<(String, String)>> {
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/instance={cluster}"));
        let pods = self.pods().list(&ours).await?.items;
        let mut uids: Vec<_> = pods
            .iter()
            .map(|pod| (pod.name_any(), pod.uid().unwrap_or_default()))
            .collect();
        uids.sort();
        Ok(uids)
    }

    /// Starts an application that writes all the time.
    pub(crate) async fn mysql_writer(&self, cluster: &str) -> Result<MySQLWriter> {
        let address = self.service_address(&format!("{cluster}-primary")).await?;
        let options = self.mysql_options(cluster, &address).await?;
        until("the table of the writer", 60, async || {
            let made = async {
                let mut conn = Conn::new(options.clone()).await?;
                let table = "CREATE TABLE IF NOT EXISTS written (id BIGINT UNSIGNED PRIMARY KEY)";
                conn.query_drop(table).await?;
                conn.disconnect().await?;
                anyhow::Ok(())
            };
            tokio::time::timeout(LIMIT, made).await??;
            Ok(Some(()))
        })
        .await?;
        let writer = MySQLWriter::start(cluster, options);
        writer.writes_more(5, 30).await?;
        Ok(writer)
    }

    /// The written rows at an address.
    async fn mysql_rows(&self, cluster: &str, address: &str) -> Result<BTreeSet<u64>> {
        let options = self.mysql_options(cluster, address).await?;
        let asked = async {
            let mut conn = Conn::new(options).await?;
            let rows: Vec<u64> = conn.query("SELECT id FROM written").await?;
            conn.disconnect().await?;
            anyhow::Ok(rows.into_iter().collect())
        };
        tokio::time::timeout(Duration::from_secs(10), asked)
            .await
            .context("no reply within 10 s")?
    }

    /// Ends the writer, and finds every acknowledged row on each member.
    pub(crate) async fn mysql_finish(&self, writer: MySQLWriter) -> Result<MySQLWritten> {
        let cluster = writer.cluster.clone();
        let written = writer.stop().await?;
        let members = self.mysql_status(&cluster).await?.members;
        ensure!(!members.is_empty(), "the status lists no member");
        for member in &members {
            let pod = &member.name;
            let what = format!("all {} acknowledged rows on {pod}", written.acknowledged.len());
            until(&what, 60, async || {
                let address = self.pod_address(pod).await?;
                let rows = self.mysql_rows(&cluster, &address).await?;
                let mut lost = written.acknowledged.iter().filter(|id| !rows.contains(id));
                if let Some(first) = lost.next() {
                    bail!("{} rows are LOST, the first is {first}", 1 + lost.count());
                }
                Ok(Some(()))
            })
            .await?;
        }
        Ok(written)
    }
}

/// Whether a cluster has all members in their roles and nothing is under way.
pub(crate) fn is_whole(status: &MySQLClusterStatus, size: i32) -> bool {
    let members = status.members.iter();
    let in_role = members
        .filter(|member| matches!(member.role, MemberRole::Primary | MemberRole::Replica))
        .count();
    status.ready_members == size
        && usize::try_from(size).is_ok_and(|size| in_role == size && status.members.len() == size)
        && status.failover.is_none()
        && status.switchover.is_none()
        && is_true(&status.conditions, types::AVAILABLE)
        && !is_true(&status.conditions, types::PROGRESSING)
        && !conditions::get(&status.conditions, types::DEGRADED).is_some_and(|degraded| {
            // Volumes of the embedded Kubernetes are folders: that the machine's disk is almost full is said of them too.
            degraded.status == ConditionStatus::True && degraded.reason != "DiskAlmostFull"
        })
}

/// A status in one line.
pub(crate) fn describe(status: &MySQLClusterStatus) -> String {
    let conditions = status.conditions.iter().map(|one| {
        let (type_, holds, reason, message) = (&one.type_, one.status, &one.reason, &one.message);
        format!("{type_}={holds:?}({reason}: {message})")
    });
    let members = status.members.iter().map(|member| {
        let (name, role, health, message) = (&member.name, member.role, member.health, &member.message);
        format!("{name} {role:?} {health:?} {message}")
    });
    format!(
        "{:?}, primary {:?}, epoch {}, {} ready; {}; [{}]; waiting: {}",
        status.phase,
        status.primary,
        status.epoch,
        status.ready_members,
        conditions.collect::<Vec<_>>().join(" "),
        members.collect::<Vec<_>>().join(", "),
        status.waiting
    )
}

#[derive(Default)]
struct Seen {
    acknowledged: Vec<u64>,
    last: Option<Instant>,
    longest: Duration,
    errors: u64,
    last_error: String,
}

/// An application that writes one row after the other through `NAME-primary`.
pub(crate) struct MySQLWriter {
    cluster: String,
    seen: Arc<Mutex<Seen>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

/// What was written.
pub(crate) struct MySQLWritten {
    acknowledged: Vec<u64>,
    longest: Duration,
}

impl MySQLWritten {
    /// The longest time without an acknowledgement.
    pub(crate) fn longest_gap(&self) -> Duration {
        self.longest
    }
}

impl fmt::Display for MySQLWritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = self.longest.as_secs_f64();
        write!(f, "{} rows, longest gap {gap:.2} s", self.acknowledged.len())
    }
}

impl MySQLWriter {
    fn start(cluster: &str, options: Opts) -> Self {
        let (seen, stop) = (Arc::new(Mutex::new(Seen::default())), CancellationToken::new());
        let task = tokio::spawn(write(options, seen.clone(), stop.clone()));
        Self {
            cluster: cluster.to_owned(),
            seen,
            stop,
            task,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("no panic while held").acknowledged.len()
    }

    /// The longest gap counts from here.
    pub(crate) fn measure_from_here(&self) {
        let mut seen = self.seen.lock().expect("no panic while held");
        (seen.longest, seen.last) = (Duration::ZERO, Some(Instant::now()));
    }

    /// Waits until so many more rows were acknowledged.
    pub(crate) async fn writes_more(&self, more: usize, seconds: u64) -> Result<()> {
        let goal = self.count() + more;
        until(&format!("{more} more acknowledged rows"), seconds, async || {
            if self.count() >= goal {
                return Ok(Some(()));
            }
            let seen = self.seen.lock().expect("no panic while held");
            bail!("{} errors, the last: {}", seen.errors, seen.last_error);
        })
        .await
    }

    async fn stop(self) -> Result<MySQLWritten> {
        self.stop.cancel();
        self.task.await.context("the writer failed")?;
        let mut seen = self.seen.lock().expect("no panic while held");
        ensure!(
            !seen.acknowledged.is_empty(),
            "not one row was acknowledged: the scenario proves nothing"
        );
        Ok(MySQLWritten {
            acknowledged: std::mem::take(&mut seen.acknowledged),
            longest: seen.longest,
        })
    }
}

async fn write(options: Opts, seen: Arc<Mutex<Seen>>, stop: CancellationToken) {
    let mut id = 0;
    let failed = |error: String| {
        let mut seen = seen.lock().expect("no panic while held");
        seen.errors += 1;
        seen.last_error = error;
    };
    while !stop.is_cancelled() {
        let mut conn = match tokio::time::timeout(LIMIT, Conn::new(options.clone())).await {
            Ok(Ok(conn)) => conn,
            Ok(Err(error)) => {
                failed(format!("connecting: {error}"));
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(_) => {
                failed("connecting timed out".into());
                continue;
            }
        };
        while !stop.is_cancelled() {
            // A row that was not acknowledged may be there all the same: its number is not used again.
            id += 1;
            let insert = conn.query_drop(format!("INSERT INTO written (id) VALUES ({id})"));
            match tokio::time::timeout(LIMIT, insert).await {
                Ok(Ok(())) => acknowledged(&seen, id),
                Ok(Err(error)) => {
                    failed(error.to_string());
                    break;
                }
                Err(_) => {
                    failed("no acknowledgement within 2 s".into());
                    break;
                }
            }
            // A steady, modest load: the scenarios are about safety, not throughput.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn acknowledged(seen: &Mutex<Seen>, id: u64) {
    let mut seen = seen.lock().expect("no panic while held");
    let now = Instant::now();
    if let Some(last) = seen.last.replace(now) {
        seen.longest = seen.longest.max(now - last);
    }
    seen.acknowledged.push(id);
}
