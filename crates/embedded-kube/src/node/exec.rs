//! What the API server asks of running pods: logs, exec, attach, port-forward.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::container::Running;
use super::kubelet::Kubelet;
use super::logs::{self, Channel, RunLog};
use super::process::Process;
use super::sandbox;
use super::terminal::Terminal;
use crate::network::Namespace;
use crate::streams::{DuplexStream, ExecOptions, ExecSession, LogOptions, PodRef, PodStreams, StreamError};

/// How long a port-forward waits for the pod's program to take the connection.
const FORWARD_LIMIT: Duration = Duration::from_secs(10);

/// The streams of all pods.
pub(crate) struct Streams(pub(crate) Arc<Kubelet>);

impl Streams {
    fn pod(&self, pod: &PodRef) -> Result<Arc<Pod>, StreamError> {
        self.0
            .pod(&pod.uid)
            .ok_or_else(|| StreamError::PodNotFound(pod.name.clone()))
    }

    fn running(&self, pod: &PodRef, container: Option<&str>) -> Result<Running, StreamError> {
        let object = self.pod(pod)?;
        let name = container_name(&object, container)?;
        let running = self.0.running(&pod.uid).and_then(|containers| containers.get(&name));
        let running = running.filter(|running| running.process.exit_code().is_none());
        let running = running.ok_or_else(|| {
            StreamError::Internal(format!(
                "unable to upgrade connection: container not found (\"{name}\")"
            ))
        })?;
        Ok(running)
    }

    fn read_logs(
        &self,
        pod: &PodRef,
        options: &LogOptions,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, StreamError> {
        let object = self.pod(pod)?;
        let name = container_name(&object, options.container.as_deref())?;
        let running = self.0.running(&pod.uid).and_then(|containers| containers.get(&name));
        let folder = self
            .0
            .machine
            .pod_folder(&pod.uid)
            .join("containers")
            .join(&name)
            .join("logs");
        let runs = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                name.to_str()?.strip_suffix(".log")?.parse::<i32>().ok()
            });
        let last = runs.max();
        let Some(last) = last else {
            return Err(StreamError::BadRequest(format!(
                "container \"{name}\" in pod \"{}\" is waiting to start: {}",
                pod.name,
                waiting_reason(&object, &name)
            )));
        };
        let (path, live) = match (options.previous, &running) {
            (false, Some(running)) => (running.log.path().to_path_buf(), Some(&running.log)),
            (false, None) => (logs::file(&folder, last), None),
            // A container that waits for its next run has its last one as the previous.
            (true, None) if waits(&object, &name) => (logs::file(&folder, last), None),
            (true, _) => (logs::file(&folder, last - 1), None),
        };
        if !path.exists() {
            let message = format!(
                "previous terminated container \"{name}\" in pod \"{}\" not found",
                pod.name
            );
            return Err(StreamError::BadRequest(message));
        }
        Ok(logs::read(path, live, options)?)
    }

    async fn start(&self, pod: &PodRef, options: &ExecOptions) -> Result<ExecSession, StreamError> {
        let running = self.running(pod, options.container.as_deref())?;
        let init = running.process.ready_sandbox().await;
        let init = init.ok_or_else(|| StreamError::Internal("the container is not running".to_string()))?;
        if options.command.is_empty() {
            return Err(StreamError::BadRequest(
                "you must specify at least one command for the container".to_string(),
            ));
        }
        let command = sandbox::enter(init, running.user_namespace, &running.env, &options.command);
        if options.tty {
            self.with_terminal(command, &running.namespace, options).await
        } else {
            self.with_pipes(command, &running.namespace, options).await
        }
    }

    async fn with_pipes(
        &self,
        mut command: Command,
        namespace: &Namespace,
        options: &ExecOptions,
    ) -> Result<ExecSession, StreamError> {
        let output = |wanted: bool| -> io::Result<(Stdio, Option<Box<dyn tokio::io::AsyncRead + Send + Unpin>>)> {
            if !wanted {
                return Ok((Stdio::null(), None));
            }
            let (reader, writer) = io::pipe()?;
            let reader: OwnedFd = reader.into();
            Ok((writer.into(), Some(Box::new(pipe::Receiver::from_owned_fd(reader)?))))
        };
        let (stdout_end, stdout) = output(options.stdout)?;
        let (stderr_end, stderr) = output(options.stderr)?;
        command.stdout(stdout_end).stderr(stderr_end).stdin(Stdio::null());
        let mut stdin: Option<Box<dyn tokio::io::AsyncWrite + Send + Unpin>> = None;
        if options.stdin {
            let (reader, writer) = io::pipe()?;
            let writer: OwnedFd = writer.into();
            command.stdin(reader);
            stdin = Some(Box::new(pipe::Sender::from_owned_fd(writer)?));
        }
        let process = self.0.machine.spawner.spawn_helper(command, namespace).await?;
        Ok(ExecSession {
            stdin,
            stdout,
            stderr,
            resize: None,
            exit: exit_of(process),
        })
    }

    async fn with_terminal(
        &self,
        inner: Command,
        namespace: &Namespace,
        options: &ExecOptions,
    ) -> Result<ExecSession, StreamError> {
        let (terminal, theirs) = Terminal::open()?;
        // A session of its own, with this terminal as the controlling one, so that Ctrl-C reaches the program.
        let mut command = sandbox::tool("setsid");
        command
            .args(["--ctty", "--wait"])
            .arg(inner.get_program())
            .args(inner.get_args())
            .env_clear();
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if !inner.get_envs().any(|(name, _)| name == "TERM") {
            command.env("TERM", "xterm");
        }
        command
            .stdin(theirs.try_clone()?)
            .stdout(theirs.try_clone()?)
            .stderr(theirs);
        let process = self.0.machine.spawner.spawn_helper(command, namespace).await?;
        let (resize, mut sizes) = mpsc::channel(4);
        let Terminal { output, input, window } = terminal;
        tokio::spawn(async move {
            while let Some(size) = sizes.recv().await {
                let _ = window.resize(size);
            }
        });
        Ok(ExecSession {
            stdin: options.stdin.then(|| Box::new(input) as Box<_>),
            stdout: Some(Box::new(output)),
            stderr: None,
            resize: Some(resize),
            exit: exit_of(process),
        })
    }

    fn join(&self, pod: &PodRef, options: &ExecOptions) -> Result<ExecSession, StreamError> {
        let running = self.running(pod, options.container.as_deref())?;
        let mut output = running.log.attach();
        let (stdout, mut stdout_end) = tokio::io::duplex(64 * 1024);
        let (stderr, mut stderr_end) = tokio::io::duplex(64 * 1024);
        let (process, log) = (running.process.clone(), running.log.clone());
        tokio::spawn(async move {
            loop {
                let received = tokio::select! {
                    received = output.recv() => received,
                    () = ended(&process, &log) => match output.try_recv() {
                        Ok(rest) => Ok(rest),
                        Err(_) => return,
                    },
                };
                let written = match received {
                    Ok((Channel::Out, bytes)) => stdout_end.write_all(&bytes).await,
                    Ok((Channel::Err, bytes)) => stderr_end.write_all(&bytes).await,
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => Ok(()),
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                };
                if written.is_err() {
                    return;
                }
            }
        });
        let stdin = match running.stdin.filter(|_| options.stdin) {
            Some(stdin) => stdin.attach()?,
            None => None,
        };
        let process = running.process;
        Ok(ExecSession {
            // What is typed for a program that does not read is dropped.
            stdin: options.stdin.then(|| match stdin {
                Some(stdin) => Box::new(stdin) as Box<_>,
                None => Box::new(tokio::io::sink()) as Box<_>,
            }),
            stdout: options.stdout.then(|| Box::new(stdout) as Box<_>),
            stderr: options.stderr.then(|| Box::new(stderr) as Box<_>),
            resize: None,
            exit: async move { Ok(process.wait().await) }.boxed(),
        })
    }
}

/// It ended and all that it wrote was read; what its children still hold open is not waited for long.
async fn ended(process: &Process, log: &RunLog) {
    process.wait().await;
    let _held_open = tokio::time::timeout(Duration::from_secs(1), log.closed()).await;
}

/// The exit code; dropping the future before that ends the program.
fn exit_of(process: Process) -> BoxFuture<'static, Result<i32, StreamError>> {
    struct Ends(Process);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.signal_tree(Signal::SIGKILL);
        }
    }
    let guard = Ends(process);
    async move { Ok(guard.0.wait().await) }.boxed()
}

fn container_name(pod: &Pod, container: Option<&str>) -> Result<String, StreamError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let names = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|c| c.name.as_str());
    match container {
        None => Ok(spec.containers.first().map(|c| c.name.clone()).unwrap_or_default()),
        Some(name) if names.into_iter().any(|have| have == name) => Ok(name.to_string()),
        Some(name) => Err(StreamError::BadRequest(format!(
            "container {name} is not valid for pod {}",
            pod.name_any()
        ))),
    }
}

fn waiting_reason(pod: &Pod, container: &str) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let all = status
        .container_statuses
        .into_iter()
        .chain(status.init_container_statuses)
        .flatten();
    let found = all.into_iter().find(|status| status.name == container);
    let waiting = found.and_then(|status| status.state?.waiting?.reason);
    waiting.unwrap_or_else(|| "ContainerCreating".to_string())
}

fn waits(pod: &Pod, container: &str) -> bool {
    waiting_reason(pod, container) == "CrashLoopBackOff"
}

impl PodStreams for Streams {
    fn logs(
        &self,
        pod: PodRef,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, io::Result<Bytes>>, StreamError>> {
        async move { self.read_logs(&pod, &options) }.boxed()
    }

    fn exec(&self, pod: PodRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, StreamError>> {
        async move { self.start(&pod, &options).await }.boxed()
    }

    fn attach(&self, pod: PodRef, options: ExecOptions) -> BoxFuture<'_, Result<ExecSession, StreamError>> {
        async move { self.join(&pod, &options) }.boxed()
    }

    fn port_forward(&self, pod: PodRef, port: u16) -> BoxFuture<'_, Result<Box<dyn DuplexStream>, StreamError>> {
        async move {
            let running = self.0.running(&pod.uid).and_then(|all| all.all().into_iter().next());
            let running = running.ok_or_else(|| StreamError::Internal("no container of the pod runs".to_string()))?;
            // As the real one: what listens on the pod's loopback address only is reached, too.
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let connecting = tokio::task::spawn_blocking(move || {
                running
                    .namespace
                    .run(move || TcpStream::connect_timeout(&address, FORWARD_LIMIT))
            });
            let connected = connecting.await.map_err(io::Error::other)?;
            let stream = connected.map_err(|error| StreamError::Internal(format!("dial tcp {address}: {error}")))?;
            stream.set_nonblocking(true)?;
            let stream = tokio::net::TcpStream::from_std(stream)?;
            Ok(Box::new(stream) as Box<dyn DuplexStream>)
        }
        .boxed()
    }
}
