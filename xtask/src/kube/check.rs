//! `./x kube check`: checks that the environment does what the tests rely on. Run it when a pin or this code changes,
//! for each version of Kubernetes. It needs no part of the product.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::build::Parts;
use super::fault::{self, Fault, Name, PodProcesses};
use super::layout::{Guest, Run};
use super::objects::{self, kubectl};
use super::process::wait_for;
use crate::paths::Paths;
use crate::shell::{cmd, output};

const NAMESPACE: &str = "environment-check";
const OBJECTS: &str = include_str!("check.yaml");
const LIMIT: Duration = Duration::from_secs(90);

pub(crate) fn run(paths: &Paths, run: &Run) -> Result<()> {
    let facts = run.facts()?;
    ensure!(facts.nodes >= 3, "this needs three nodes: ./x kube up --nodes 3");
    let check = Check {
        paths,
        run,
        parts: Parts::new(paths, &facts.version),
    };
    let result = check.all();
    let gone = step("the namespace is deleted, with its volumes and their folders", || {
        check.remove()
    });
    result.and(gone)?;
    println!("environment ok: Kubernetes {}", facts.version);
    Ok(())
}

/// Runs one step and prints how long it took.
fn step(what: &str, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    let result = act();
    println!(
        "{:6.1} s  {what}{}",
        begun.elapsed().as_secs_f64(),
        if result.is_ok() { "" } else { ": FAILED" }
    );
    result.map_err(|error| error.context(what.to_owned()))
}

struct Check<'a> {
    paths: &'a Paths,
    run: &'a Run,
    parts: Parts,
}

impl Check<'_> {
    fn all(&self) -> Result<()> {
        step(
            "three restricted pods that are not root write to their claims, one per node",
            || {
                objects::apply(&self.parts, self.run, OBJECTS)?;
                self.kubectl(&["rollout", "status", "statefulset/member", "--timeout=90s"])
                    .map(drop)
            },
        )?;
        step("a key is written by the service's name and read by a pod's", || {
            self.etcdctl("client", &["put", "key", "one"])?;
            self.expect_key("member-2.member", "one")
        })?;
        step("a pod that is not restricted is rejected", || {
            let words = ["run", "refused", "--image=quay.io/coreos/etcd:v3.6.16"];
            ensure!(
                self.kubectl(&words)
                    .is_err_and(|refusal| format!("{refusal}").contains("restricted"))
            );
            Ok(())
        })?;
        step(
            "logs and commands in pods work, and a service from inside a pod",
            || {
                self.kubectl(&["logs", "member-0", "--tail=1"])?;
                self.kubectl(&[
                    "exec",
                    "member-0",
                    "--",
                    "etcdctl",
                    "--endpoints=client:2379",
                    "get",
                    "key",
                ])
                .map(drop)
            },
        )?;
        step("a claim grows", || {
            let patch = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } }).to_string();
            self.kubectl(&["patch", "persistentvolumeclaim", "data-member-0", "--patch", &patch])?;
            let grown = "--for=jsonpath={.status.capacity.storage}=2Gi";
            self.kubectl(&["wait", "persistentvolumeclaim/data-member-0", grown, "--timeout=60s"])
                .map(drop)
        })?;
        step("a killed process is started again", || {
            self.fault(&Fault::Kill(PodProcesses {
                pod: name("member-0"),
                container: None,
            }))?;
            wait_for("a restart", LIMIT, || {
                let status = self.pod("member-0")?["status"]["containerStatuses"][0].clone();
                ensure!(
                    status["restartCount"].as_u64() >= Some(1) && status["ready"] == true,
                    "not yet"
                );
                Ok(())
            })
        })?;
        step(
            "cut pods do not reach each other, others do; after healing they do",
            || {
                let pair = ["member-0", "member-1"].map(|pod| format!("{NAMESPACE}/{pod}"));
                self.fault(&Fault::Cut {
                    a: pair[0].clone(),
                    b: pair[1].clone(),
                    one_way: false,
                })?;
                let cut = self.pod_reaches("member-0", "member-1");
                let other = self.pod_reaches("member-0", "member-2");
                self.fault(&Fault::Heal)?;
                ensure!(cut.is_err(), "the cut let packets pass");
                other?;
                wait_for("the healed link", LIMIT, || self.pod_reaches("member-0", "member-1"))
            },
        )?;
        self.power_cut()
    }

    fn power_cut(&self) -> Result<()> {
        let pod = self.pod("member-2")?;
        let node: Guest = match pod["spec"]["nodeName"].as_str().unwrap_or_default().parse() {
            Ok(node) => node,
            Err(problem) => bail!("{problem}"),
        };
        step("a powered-off node is detected, and the others continue", || {
            self.fault(&Fault::StopNode { node: node.clone() })?;
            let lost = "--for=condition=Ready=Unknown";
            self.kubectl(&["wait", &format!("node/{node}"), lost, "--timeout=60s"])?;
            wait_for("a write", LIMIT, || {
                self.etcdctl("member-1.member", &["put", "key", "two"])
            })
        })?;
        step("the node comes back, with its pod and the pod's data", || {
            self.fault(&Fault::StartNode { node: node.clone() })?;
            wait_for("the member", LIMIT, || self.expect_key("member-2.member", "two"))
        })
    }

    fn remove(&self) -> Result<()> {
        self.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s"])?;
        wait_for("the volumes to be deleted", LIMIT, || {
            let volumes = self.kubectl(&["get", "persistentvolumes", "-o", "name"])?;
            ensure!(volumes.is_empty(), "still there: {volumes}");
            Ok(())
        })
    }

    fn fault(&self, fault: &Fault) -> Result<()> {
        fault::run(self.paths, self.run, fault)
    }

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        output(
            kubectl(&self.parts, self.run)
                .args(["--namespace", NAMESPACE])
                .args(words),
        )
    }

    fn pod(&self, pod: &str) -> Result<Value> {
        Ok(serde_json::from_str(
            &self.kubectl(&["get", "pod", pod, "-o", "json"])?,
        )?)
    }

    /// Whether one pod reaches another's etcd.
    fn pod_reaches(&self, from: &str, to: &str) -> Result<()> {
        let endpoint = format!("--endpoints={to}.member:2379");
        let words = [
            "exec",
            from,
            "--",
            "etcdctl",
            "--command-timeout=2s",
            "--dial-timeout=2s",
            &endpoint,
            "get",
            "key",
        ];
        self.kubectl(&words).map(drop)
    }

    fn expect_key(&self, host: &str, value: &str) -> Result<()> {
        let found = output(self.client(host).args(["get", "key", "--print-value-only"]))?;
        ensure!(found.trim() == value, "found {found:?} instead of {value:?}");
        Ok(())
    }

    fn etcdctl(&self, host: &str, words: &[&str]) -> Result<()> {
        output(self.client(host).args(words)).map(drop)
    }

    /// Runs etcdctl on the machine, inside the cluster's network.
    fn client(&self, host: &str) -> Command {
        let mut command = cmd(self.run.program(), ["kube", "--name", &self.run.name, "exec", "--"]);
        command.arg(self.parts.etcd.join("etcdctl"));
        command.args([
            format!("--endpoints={host}.{NAMESPACE}.svc:2379"),
            "--command-timeout=5s".into(),
        ]);
        command
    }
}

fn name(pod: &str) -> Name {
    Name {
        namespace: NAMESPACE.to_owned(),
        name: pod.to_owned(),
    }
}
