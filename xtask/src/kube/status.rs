//! `./x kube status` and `./x kube env`: what is running, and how to use it.

use anyhow::Result;

use super::build::Parts;
use super::layout::Run;
use super::objects::kubectl;
use super::process::Process;
use crate::paths::Paths;
use crate::shell;

pub(crate) fn run(run: &Run) -> Result<()> {
    let facts = run.facts()?;
    println!("Kubernetes {}, {} nodes", facts.version, facts.nodes);
    for name in Process::recorded(run) {
        match Process::find(run, &name) {
            Some(process) => println!("{name:10} runs, process {}", process.pid),
            None => println!("{name:10} is not running"),
        }
    }
    summary(run)
}

/// Prints how to use the cluster, and its nodes.
pub(crate) fn summary(run: &Run) -> Result<()> {
    let facts = run.facts()?;
    let parts = Parts::new(&Paths::find()?, &facts.version);
    let flag = if run.name == "main" {
        String::new()
    } else {
        format!(" --name {}", run.name)
    };
    println!("  export KUBECONFIG={}", run.kubeconfig().display());
    println!("  {} get nodes", parts.program("kubectl").display());
    println!("  eval \"$(./x kube{flag} env)\"    does both, with kubectl on the PATH");
    println!("  ./x kube{flag} exec COMMAND     runs where pod and service addresses and names work");
    println!("  ./x kube{flag} down             stops it");
    shell::run(kubectl(&parts, run).args(["get", "nodes"]))
}

/// Lines for a shell to evaluate.
pub(crate) fn env(run: &Run) -> Result<()> {
    let facts = run.facts()?;
    let parts = Parts::new(&Paths::find()?, &facts.version);
    println!("export KUBECONFIG='{}'", run.kubeconfig().display());
    println!("export PATH='{}':\"$PATH\"", parts.kubernetes.display());
    Ok(())
}
