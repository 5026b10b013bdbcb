//! `stateward local`: an embedded Kubernetes with the operator in the same process.

mod control;
mod ground;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) use ground::{Ground, Start, kubectl_off_path};

/// The verbs of `stateward local`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Start in the foreground; Ctrl-C stops it, starting again brings the same objects and data back
    Up {
        #[command(flatten)]
        place: Place,
        /// How many nodes
        #[arg(long, default_value_t = 3)]
        nodes: u8,
        /// Without the operator: a bare Kubernetes
        #[arg(long)]
        no_operator: bool,
        /// Answer for an image that is not there with the nearest version, and say so in an event
        #[arg(long)]
        nearest_images: bool,
        /// Pods reach only the cluster; without this, also what the machine reaches, and its 127.0.0.1 as
        /// host.cluster.internal
        #[arg(long)]
        no_outbound: bool,
    },
    /// Stop the one that runs in this folder
    Down {
        #[command(flatten)]
        place: Place,
    },
    /// Whether one runs in this folder, and how to reach it
    Status {
        #[command(flatten)]
        place: Place,
    },
    /// Print its kubeconfig
    Kubeconfig {
        #[command(flatten)]
        place: Place,
    },
    /// Run a command in its network, where pods and services are reached by name: `stateward local exec -- etcdctl …`
    Exec {
        #[command(flatten)]
        place: Place,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// Break something, or mend it
    Fault {
        #[command(flatten)]
        place: Place,
        #[command(subcommand)]
        fault: control::Fault,
    },
}

/// Which instance: several can run side by side, each in its folder.
#[derive(clap::Args, Clone)]
pub(crate) struct Place {
    /// Where its state is kept
    #[arg(long, env = "STATEWARD_LOCAL")]
    folder: Option<PathBuf>,
}

impl Place {
    fn folder(&self) -> Result<PathBuf> {
        match &self.folder {
            Some(folder) => Ok(folder.clone()),
            None => {
                let home = std::env::var_os("HOME").context("HOME is not set; give --folder")?;
                Ok(PathBuf::from(home).join(".local/share/stateward/local"))
            }
        }
    }

    /// The process that runs in the folder, if one does.
    fn running(&self) -> Result<Option<Pid>> {
        let text = std::fs::read_to_string(self.folder()?.join("pid")).unwrap_or_default();
        let pid = text.trim().parse().ok().map(Pid::from_raw);
        Ok(pid.filter(|pid| kill(*pid, None).is_ok()))
    }
}

impl Verb {
    /// Whether it runs pods in this process.
    pub(crate) fn runs_pods(&self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

pub(crate) async fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Up {
            place,
            nodes,
            no_operator,
            nearest_images,
            no_outbound,
        } => {
            let start = Start {
                folder: Some(place.folder()?),
                nodes,
                operator: !no_operator,
                nearest_images,
                outbound: !no_outbound,
            };
            up(&place, start).await
        }
        Verb::Down { place } => down(&place).await,
        Verb::Status { place } => status(&place),
        Verb::Kubeconfig { place } => {
            let path = place.folder()?.join("kubeconfig");
            print!(
                "{}",
                std::fs::read_to_string(&path).with_context(|| format!(
                    "nothing was started in {}; run `stateward local up`",
                    place.folder().unwrap_or_default().display()
                ))?
            );
            Ok(())
        }
        Verb::Exec { place, command } => exec(&place, &command),
        Verb::Fault { place, fault } => control::send(&place.folder()?.join("control"), &fault).await,
    }
}

async fn up(place: &Place, start: Start) -> Result<()> {
    if let Some(pid) = place.running()? {
        bail!(
            "one runs in {} already (process {pid}); `stateward local down` stops it, --folder starts another beside it",
            place.folder()?.display()
        );
    }
    let folder = place.folder()?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let started = Instant::now();
    let ground = Ground::start(start).await?;
    println!(
        "ready after {:.2} s. Use it with:\n\n  export KUBECONFIG={}\n  kubectl get nodes\n\nCtrl-C stops it. Logs: {}",
        started.elapsed().as_secs_f64(),
        ground.kubeconfig().display(),
        ground.log().display()
    );
    if let Some(hint) = embedded_kube::several_users_hint() {
        println!("\nNote: {hint}.");
    }
    let control = control::serve(folder.join("control"), control::Means::of(&ground)?);
    tokio::select! {
        result = control => result?,
        () = crate::operator::stop_signal() => {}
    }
    ground.stop().await;
    Ok(())
}

/// Becomes the command.
fn exec(place: &Place, command: &[String]) -> Result<()> {
    let folder = place.folder()?;
    let Some(pid) = place.running()? else {
        bail!(
            "nothing runs in {}; start it with `stateward local up`",
            folder.display()
        );
    };
    let mut inside = embedded_kube::visit_network(pid.as_raw().unsigned_abs(), &folder, command)
        .with_context(|| format!("cannot enter the network of process {pid}"))?;
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(programs) = ground::newest_etcd() {
        path.push(":");
        path.push(programs);
    }
    let error = inside
        .env("PATH", path)
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .exec();
    Err(error).context("cannot run the command")
}

async fn down(place: &Place) -> Result<()> {
    let Some(pid) = place.running()? else {
        println!("nothing runs in {}", place.folder()?.display());
        return Ok(());
    };
    kill(pid, Signal::SIGTERM).with_context(|| format!("cannot stop process {pid}"))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while kill(pid, None).is_ok() {
        if Instant::now() > deadline {
            bail!("process {pid} was asked to stop and has not within 60 s");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("stopped; `stateward local up` brings everything back");
    Ok(())
}

fn status(place: &Place) -> Result<()> {
    let folder = place.folder()?;
    match place.running()? {
        Some(pid) => println!(
            "runs as process {pid}; export KUBECONFIG={}",
            folder.join("kubeconfig").display()
        ),
        None => println!("does not run; its state is in {}", folder.display()),
    }
    Ok(())
}
