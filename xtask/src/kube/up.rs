//! `./x kube up`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::build::{self, Parts};
use super::layout::{CONTROL, Facts, Guest, Run};
use super::objects::kubectl;
use super::process::{Process, wait_for};
use super::{down, guest, net, objects, pki, root, status, store};
use crate::paths::Paths;
use crate::pins;
use crate::shell::{cmd, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The version of Kubernetes
    #[arg(long, default_value = pins::KUBERNETES[0])]
    pub(crate) version: String,
    /// The number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Build and fetch everything, but start nothing
    #[arg(long)]
    pub(crate) build_only: bool,
}

const LIMIT: Duration = Duration::from_secs(60);

impl Args {
    /// Builds what is missing, which any user may do, then becomes root if possible.
    pub(crate) fn build(&self, paths: &Paths) -> Result<()> {
        if !self.build_only && !root::is_root() {
            build::check_machine(paths).or_else(|lack| if root::can_become_root() { Ok(()) } else { Err(lack) })?;
        }
        Parts::new(paths, &self.version).ensure(paths, &self.version)?;
        if self.build_only {
            Ok(())
        } else {
            root::become_root(paths)
        }
    }
}

pub(crate) fn run(paths: &Paths, run: &Run, args: &Args) -> Result<()> {
    if args.build_only {
        return Ok(());
    }
    build::check_machine(paths)?;
    let parts = Parts::new(paths, &args.version);
    if Process::find(run, "control").is_some() {
        let facts = run.facts()?;
        if facts.version != args.version || facts.nodes != usize::from(args.nodes) {
            bail!(
                "{} is already running with {} nodes and other settings; stop it first: ./x kube down",
                facts.version,
                facts.nodes
            );
        }
        return status::summary(run);
    }
    down::run(run)?; // left by a crash
    store::ensure(paths, &parts)?;
    let begun = Instant::now();
    if let Err(error) = start(run, &parts, args) {
        eprintln!(
            "the logs are in {}; the last lines of the guests:",
            run.folder.join("log").display()
        );
        for name in Process::recorded(run) {
            let said = fs::read_to_string(run.log(&name)).unwrap_or_default();
            said.lines()
                .last()
                .into_iter()
                .for_each(|line| eprintln!("  {name}: {line}"));
            if let Some(process) = Process::find(run, &name) {
                process.end()?;
            }
        }
        return Err(error);
    }
    println!(
        "Kubernetes {} is up after {:.1} s",
        args.version,
        begun.elapsed().as_secs_f64()
    );
    status::summary(run)
}

fn start(run: &Run, parts: &Parts, args: &Args) -> Result<()> {
    let nodes = usize::from(args.nodes);
    fs::create_dir_all(&run.folder)?;
    let search = "search default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
    fs::write(
        run.folder.join("resolv.conf"),
        format!("nameserver {CONTROL}\n{search}"),
    )?;
    fs::write(run.folder.join("node-resolv.conf"), format!("nameserver {CONTROL}\n"))?;
    fs::copy(std::env::current_exe()?, run.program())?;
    net::make(run, nodes)?;
    Process::start(
        run,
        "relay",
        cmd(run.program(), ["kube", "--name", &run.name]).arg("relay"),
    )?;
    let port = wait_for("the relay", LIMIT, || {
        Ok(fs::read_to_string(run.folder.join("relay.port"))?.parse()?)
    })?;
    run.write_facts(&Facts {
        version: args.version.clone(),
        nodes,
        port,
    })?;
    pki::make(run, nodes, port)?;
    fs::write(guest::api_wanted(run), "")?;
    for guest in Guest::all(nodes) {
        guest::start(run, &guest)?;
    }
    wait_for_api(parts, run)?;
    fs::write(guest::api_ready(run), "")?;
    objects::apply(parts, run, objects::OBJECTS)?;
    for node in Guest::all(nodes).skip(1) {
        wait_until_ready(parts, run, &node, "")?;
    }
    wait_for("the default service account", LIMIT, || {
        output(kubectl(parts, run).args(["get", "serviceaccount", "default"]))
    })?;
    Ok(())
}

/// Waits until the API server responds.
pub(crate) fn wait_for_api(parts: &Parts, run: &Run) -> Result<()> {
    wait_for("the API server", LIMIT, || {
        output(kubectl(parts, run).args(["get", "--raw", "/readyz"]))
    })
    .map(drop)
}

/// Waits until the node reports that it accepts pods, in a report later than `before`, a result of [`heartbeat`].
pub(crate) fn wait_until_ready(parts: &Parts, run: &Run, node: &Guest, before: &str) -> Result<()> {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    wait_for(&format!("{node} to be ready"), LIMIT, || {
        ensure!(
            heartbeat(parts, run, node)? != before,
            "it has not sent a heartbeat yet"
        );
        let answer = output(kubectl(parts, run).args(["get", "node", &node.to_string(), "-o", path]))?;
        ensure!(answer == "True", "its Ready condition is {answer:?}");
        Ok(())
    })
}

/// The time of the last heartbeat of the node's kubelet.
pub(crate) fn heartbeat(parts: &Parts, run: &Run, node: &Guest) -> Result<String> {
    let words = [
        "get",
        "lease",
        "--namespace=kube-node-lease",
        "-o=jsonpath={.spec.renewTime}",
    ];
    output(kubectl(parts, run).args(words).arg(node.to_string()))
}
