//! Benchmarks: the operator compared with the same objects created by a script, alternating in one run. The ratio says
//! more than the time, because both sides meet the same machine, the same Kubernetes and the same etcd.

mod by_hand;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use stateward_etcd_driver::client::Client;

use crate::environment::{Environment, Fault};
use crate::test::{Test, is_ready, is_settled};
use crate::wait::seen;
use by_hand::ByHand;

/// The newest minor version that both environments usually have, and the one that other operators were measured with.
const VERSION: &str = "3.6.16";

/// The time limit of one measurement, in seconds.
const STEP_TIMEOUT: u64 = 300;

/// One measurement.
struct Subject {
    name: &'static str,
    /// The limit for the operator's time, as a multiple of the script's.
    limit: f64,
    /// How many rounds each side is measured.
    rounds: usize,
    /// Which round counts, sorted by time, the fastest being 0. Where etcd's timing is random (a first member asks for
    /// votes after up to a second, several first members may delay each other, peers may delay a stopping member by a
    /// second), a fast round of each side is compared; otherwise, the median.
    counts: usize,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Create { bootstrap: &'static str, clusters: usize },
    LostVolume,
    DeletedPod,
}

const SUBJECTS: [Subject; 5] = [
    Subject {
        name: "create three members, seed then join",
        limit: 1.5,
        rounds: 7,
        counts: 1,
        what: What::Create {
            bootstrap: "SeedThenJoin",
            clusters: 1,
        },
    },
    Subject {
        name: "create three members, parallel",
        limit: 1.5,
        rounds: 7,
        counts: 1,
        what: What::Create {
            bootstrap: "Parallel",
            clusters: 1,
        },
    },
    Subject {
        name: "replace a member whose volume is lost",
        limit: 1.5,
        rounds: 3,
        counts: 1,
        what: What::LostVolume,
    },
    Subject {
        name: "a deleted pod is back",
        limit: 1.5,
        rounds: 7,
        counts: 1,
        what: What::DeletedPod,
    },
    Subject {
        name: "ten clusters of three at once",
        limit: 1.2,
        rounds: 3,
        counts: 1,
        what: What::Create {
            bootstrap: "SeedThenJoin",
            clusters: 10,
        },
    },
];

/// Runs all measurements, or those whose names contain one of the words, and prints a line for each. Fails if a ratio
/// is over its limit.
pub(crate) async fn run(environment: &Arc<dyn Environment>, words: &[String]) -> Result<()> {
    let mut over = Vec::new();
    println!(
        "| in the {} environment | by hand | operator | ratio | limit |",
        environment.name()
    );
    println!("|---|---|---|---|---|");
    let wanted = |subject: &&Subject| words.is_empty() || words.iter().any(|word| subject.name.contains(word.as_str()));
    for subject in SUBJECTS.iter().filter(wanted) {
        let (mut script, mut operator) = (Vec::new(), Vec::new());
        for _ in 0..subject.rounds {
            script.push(measure(environment, subject.what, by_script).await?);
            operator.push(measure(environment, subject.what, by_operator).await?);
        }
        let (script, operator) = (subject.typical(script), subject.typical(operator));
        let ratio = operator.as_secs_f64() / script.as_secs_f64();
        println!(
            "| {} | {:.2} s | {:.2} s | {ratio:.2} | {} |",
            subject.name,
            script.as_secs_f64(),
            operator.as_secs_f64(),
            subject.limit
        );
        if ratio > subject.limit {
            over.push(subject.name);
        }
    }
    if over.is_empty() {
        Ok(())
    } else {
        bail!("slower than allowed: {}", over.join("; "))
    }
}

async fn measure(
    environment: &Arc<dyn Environment>,
    what: What,
    side: impl AsyncFn(&Test, What) -> Result<Duration>,
) -> Result<Duration> {
    let mut test = Test::new(environment.clone(), "bench").await?;
    if environment
        .versions()
        .iter()
        .any(|version| version.to_string() == VERSION)
    {
        test.usual = VERSION.into();
    }
    let took = side(&test, what).await;
    let cleaned = test.clean_up().await;
    let took = took?;
    cleaned.map(|()| took)
}

async fn by_script(test: &Test, what: What) -> Result<Duration> {
    let clusters = match what {
        What::Create { clusters, .. } => clusters,
        What::LostVolume | What::DeletedPod => 1,
    };
    let mut all = (0..clusters)
        .map(|number| ByHand::new(test, &format!("hand-{number}"), 3, &test.usual))
        .collect::<Result<Vec<_>>>()?;
    let took = script(test, what, &mut all).await;
    let deleted = try_join_all(all.iter().map(ByHand::delete)).await;
    let took = took?;
    deleted.map(|_| took)
}

async fn script(test: &Test, what: What, all: &mut [ByHand<'_>]) -> Result<Duration> {
    match what {
        What::Create { bootstrap, .. } => {
            let started = Instant::now();
            match bootstrap {
                "Parallel" => drop(try_join_all(all.iter().map(ByHand::parallel)).await?),
                _ => drop(try_join_all(all.iter().map(ByHand::seed_then_join)).await?),
            }
            Ok(started.elapsed())
        }
        What::LostVolume => {
            let cluster = &mut all[0];
            cluster.parallel().await?;
            settle_connections().await;
            let lost = cluster.follower().await?;
            test.fault(Fault::LoseVolume(test.namespace.clone(), lost.0.clone()))
                .await?;
            cluster.replace(&lost).await
        }
        What::DeletedPod => {
            let cluster = &all[0];
            cluster.parallel().await?;
            let member = cluster.follower().await?;
            let started = Instant::now();
            cluster.restart(&member).await?;
            Ok(started.elapsed())
        }
    }
}

async fn by_operator(test: &Test, what: What) -> Result<Duration> {
    match what {
        What::Create { bootstrap, clusters } => {
            let names: Vec<_> = (0..clusters).map(|number| format!("own-{number}")).collect();
            let spec = json!({"size": 3, "bootstrap": bootstrap});
            let started = Instant::now();
            try_join_all(names.iter().map(|name| test.create(name, spec.clone()))).await?;
            try_join_all(names.iter().map(|name| settled(test, name))).await?;
            Ok(started.elapsed())
        }
        What::LostVolume => {
            test.created("own", json!({"size": 3, "bootstrap": "Parallel"})).await?;
            settle_connections().await;
            let lost = follower(test).await?;
            let survivor = test.leader("own").await?;
            let survivor = test
                .etcd(&test.get("own").await?, &test.pods().get(&survivor).await?)
                .await?;
            let started = Instant::now();
            test.fault(Fault::LoseVolume(test.namespace.clone(), lost.clone()))
                .await?;
            removed(&survivor, &lost).await?;
            eprintln!("the loss was proven within {:.2} s", started.elapsed().as_secs_f64());
            let started = Instant::now();
            settled(test, "own").await?;
            Ok(started.elapsed())
        }
        What::DeletedPod => {
            test.created("own", json!({"size": 3, "bootstrap": "Parallel"})).await?;
            let member = follower(test).await?;
            let uid = test.pods().get(&member).await?.uid();
            let started = Instant::now();
            test.pods().delete(&member, &DeleteParams::default()).await?;
            let is_back = |pod: &Pod| pod.uid() != uid && is_ready(pod);
            seen(&test.pods(), &member, STEP_TIMEOUT, is_back).await?;
            Ok(started.elapsed())
        }
    }
}

/// The status changes first; only then is everything else checked.
async fn settled(test: &Test, name: &str) -> Result<()> {
    seen(&test.clusters(), name, STEP_TIMEOUT, is_settled).await?;
    test.settled(name, STEP_TIMEOUT).await.map(drop)
}

/// Waits until a member has left the list, which is the first step after its loss is proven.
async fn removed(survivor: &Client, lost: &str) -> Result<()> {
    let gone = async {
        while survivor
            .member_list(false)
            .await?
            .members
            .iter()
            .any(|member| member.name == lost)
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(120), gone)
        .await
        .context("the lost member is still in the list")?
}

async fn follower(test: &Test) -> Result<String> {
    let leader = test.leader("own").await?;
    let pods = test.pods_of("own").await?;
    let follower = pods.iter().map(ResourceExt::name_any).find(|name| *name != leader);
    follower.context("no follower")
}

/// etcd rejects membership changes until all voters have been connected for 5 s. Neither side counts that wait.
async fn settle_connections() {
    tokio::time::sleep(Duration::from_secs(6)).await;
}

impl Subject {
    fn typical(&self, mut times: Vec<Duration>) -> Duration {
        times.sort();
        times[self.counts]
    }
}
