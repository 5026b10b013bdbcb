//! Making and starting a container: image, environment, volumes, sandbox, log.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use tokio::net::unix::pipe;

use super::super::environment;
use super::super::events::Weight;
use super::super::images::{Found, Image, Root};
use super::super::logs::{self, RunLog};
use super::super::probes::Target;
use super::super::sandbox::{Mount, PROGRAMS, Sandbox, needs_user_namespace};
use super::super::sources::Sources;
use super::super::status::running;
use super::super::volumes;
use super::{Keeper, Running, Stdin, Trouble, now};

impl Keeper {
    pub(super) async fn start(&self, spec: &Container) -> Result<(Target, RunLog), Trouble> {
        let machine = &self.context.machine;
        let reference = spec.image.clone().unwrap_or_default();
        let found = machine.images.find(&reference).map_err(|error| {
            let never = spec.image_pull_policy.as_deref() == Some("Never");
            Trouble {
                reason: if never { "ErrImageNeverPull" } else { "ErrImagePull" },
                message: error.to_string(),
            }
        })?;
        if let Some(asked) = &found.instead_of {
            let message = format!(
                "Image \"{asked}\" is not registered here; running the nearest version \"{}\" instead",
                found.reference
            );
            self.event(Weight::Warning, "NearestImage", message);
        }
        self.event(
            Weight::Normal,
            "Pulled",
            format!("Container image \"{reference}\" already present on machine"),
        );
        let pod = self.pod();
        let config = |message: String| Trouble {
            reason: "CreateContainerConfigError",
            message,
        };
        let sources = {
            let mut known = self.context.sources.lock().await;
            let read = Sources::load(&machine.client, &pod, &known)
                .await
                .map_err(|error| config(error.to_string()))?;
            *known = read.clone();
            read
        };
        let (facts, folders) = (&self.context.facts, &self.context.volumes);
        let made = volumes::prepare(&pod, folders, facts, &sources).map_err(|error| config(error.to_string()))?;
        let namespace = pod.namespace().unwrap_or_default();
        let services = machine.directory.services(Some(&namespace));
        let mut env = environment::variables(&pod, spec, facts, &sources, &services)
            .map_err(|error| config(error.to_string()))?;
        for (name, value) in found.image.env.iter().rev() {
            if !env.iter().any(|(have, _)| have == name) {
                env.insert(0, (name.clone(), value.clone()));
            }
        }
        let mounts = volumes::mounts(&pod, spec, &made, &env).map_err(|error| config(error.to_string()))?;
        let failed = |error: io::Error| Trouble {
            reason: "RunContainerError",
            message: error.to_string(),
        };
        self.launch(&pod, spec, &found, env, mounts).await.map_err(failed)
    }

    pub(super) fn container_folder(&self) -> PathBuf {
        self.context.folder.join("containers").join(&self.name)
    }

    async fn launch(
        &self,
        pod: &Pod,
        spec: &Container,
        found: &Found,
        mut env: Vec<(String, String)>,
        mut mounts: Vec<Mount>,
    ) -> io::Result<(Target, RunLog)> {
        let facts = &self.context.facts;
        let folder = self.container_folder();
        fs::create_dir_all(&folder)?;
        let message_file = folder.join("termination-log");
        fs::write(&message_file, "")?;
        let message_path = spec
            .termination_message_path
            .clone()
            .unwrap_or_else(|| "/dev/termination-log".to_string());
        mounts.push(Mount {
            source: message_file,
            target: message_path.into(),
            read_only: false,
        });
        let mut own_root = None;
        match &found.image.root {
            Root::Own(root) => own_root = Some(root.clone()),
            Root::Host {
                programs: Some(programs),
            } => mounts.push(Mount {
                source: programs.clone(),
                target: PROGRAMS.into(),
                read_only: true,
            }),
            Root::Host { programs: None } => {}
        }
        mounts.extend(image_volumes(&found.image, &mounts, &folder.join("volumes"))?);
        let (uid, gid) = user(pod, spec, found.image.user);
        if !env.iter().any(|(name, _)| name == "HOME") {
            env.push(("HOME".to_string(), if uid == 0 { "/root" } else { "/" }.to_string()));
        }
        let command = environment::command_line(spec, &found.image.entrypoint, &found.image.cmd, &env);
        let sandbox = Sandbox {
            hostname: facts.hostname.clone(),
            uid,
            gid,
            etc: self.context.folder.join("etc"),
            root: own_root,
            mounts,
            read_only_root: spec.security_context.as_ref().and_then(|c| c.read_only_root_filesystem) == Some(true),
            working_dir: spec
                .working_dir
                .clone()
                .filter(|folder| !folder.is_empty())
                .map(PathBuf::from)
                .or_else(|| found.image.working_dir.clone()),
            env: env.clone(),
            command,
        };
        let mut command = sandbox.command();
        let (stdout, stdout_end) = io::pipe()?;
        let (stderr, stderr_end) = io::pipe()?;
        command
            .stdin(std::process::Stdio::null())
            .stdout(stdout_end)
            .stderr(stderr_end);
        let mut stdin = None;
        if spec.stdin == Some(true) {
            let (stdin_end, end) = io::pipe()?;
            command.stdin(stdin_end);
            stdin = Some(Arc::new(Stdin::new(end.into(), spec.stdin_once == Some(true))));
        }
        let run = self.run_number();
        self.event(Weight::Normal, "Created", format!("Container created: {}", self.name));
        let process = self
            .context
            .machine
            .spawner
            .spawn(command, &self.context.place.namespace)
            .await?;
        let (stdout, stderr): (OwnedFd, OwnedFd) = (stdout.into(), stderr.into());
        let log = logs::record(
            &folder.join("logs"),
            run,
            pipe::Receiver::from_owned_fd(stdout)?,
            pipe::Receiver::from_owned_fd(stderr)?,
        )?;
        let user_namespace = needs_user_namespace(uid);
        let running_now = Running {
            process: process.clone(),
            user_namespace,
            namespace: self.context.place.namespace.clone(),
            env: env.clone(),
            log: log.clone(),
            stdin,
        };
        self.context.running.set(&self.name, Some(running_now));
        let id = format!("embedded://{}", uuid::Uuid::new_v4().simple());
        self.view(|view| {
            let former = std::mem::replace(&mut view.state, running(now()));
            if former.terminated.is_some() {
                view.last_state = Some(former);
            }
            view.container_id = Some(id);
            view.image = found.reference.clone();
            view.image_id = found.id.clone();
            view.started = false;
            view.ready = false;
        });
        self.event(Weight::Normal, "Started", format!("Container started: {}", self.name));
        let target = Target {
            spawner: self.context.machine.spawner.clone(),
            process,
            user_namespace,
            namespace: self.context.place.namespace.clone(),
            env,
            pod_ip: facts.pod_ip,
            container: spec.clone(),
        };
        Ok((target, log))
    }

    fn run_number(&self) -> i32 {
        let mut number = 0;
        self.view(|view| number = view.restart_count);
        number
    }
}

/// The volumes of an image that the pod mounts nothing at, as folders made anew with what the image has there.
fn image_volumes(image: &Image, mounts: &[Mount], folder: &Path) -> io::Result<Vec<Mount>> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut made = Vec::new();
    for (number, target) in image.volumes.iter().enumerate() {
        if mounts.iter().any(|mount| mount.target == *target) {
            continue;
        }
        let source = folder.join(number.to_string());
        fs::create_dir_all(&source)?;
        if let Root::Own(root) = &image.root {
            copy(&root.join(target.strip_prefix("/").unwrap_or(target)), &source)?;
        }
        made.push(Mount {
            source,
            target: target.clone(),
            read_only: false,
        });
    }
    Ok(made)
}

/// Copies what is in a folder, if there is one.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from).into_iter().flatten() {
        let entry = entry?;
        let (source, copy_of) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir(&copy_of)?;
            copy(&source, &copy_of)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, copy_of)?;
        } else {
            fs::copy(&source, copy_of)?;
        }
    }
    Ok(())
}

/// The user a container runs as: its own setting, the pod's, the image's, else root, unless root is forbidden.
pub(crate) fn user(pod: &Pod, container: &Container, image: Option<(u32, u32)>) -> (u32, u32) {
    let own = container.security_context.clone().unwrap_or_default();
    let pods = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.clone())
        .unwrap_or_default();
    let number = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
    let non_root = own.run_as_non_root.or(pods.run_as_non_root) == Some(true);
    let asked = number(own.run_as_user.or(pods.run_as_user));
    let (image_uid, image_gid) = image.unzip();
    let uid = asked.or(image_uid).unwrap_or(if non_root { 65532 } else { 0 });
    let gid = number(own.run_as_group.or(pods.run_as_group).or(pods.fs_group));
    let gid = gid.or(if asked.is_none() { image_gid } else { None }).unwrap_or(uid);
    (uid, gid)
}
