//! What one container sees, as arguments for bubblewrap, and how to run a further program inside it. Starts nothing
//! itself.
//!
//! The root is an empty in-memory file system with the host's programs and libraries read-only, the image's programs in
//! front of them at `/usr/local/bin`, and the volumes. The network is the machine's own. Users: where the pod asks for
//! another user than ours, a user namespace maps that number to us, so every volume is readable and writable whatever
//! `runAsUser` and `fsGroup` say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A host path shown inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) read_only: bool,
}

/// One container's view of the world.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    pub(crate) hostname: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The folder with our own `hosts`, `resolv.conf`, `passwd` and so on.
    pub(crate) etc: PathBuf,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) read_only_root: bool,
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) command: Vec<String>,
}

/// Files of the host's `/etc` that programs need and that hold no secrets.
const HOST_ETC: [&str; 9] = [
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "protocols",
    "services",
    "ssl",
];
/// The files in [`Sandbox::etc`].
pub(crate) const OWN_ETC: [&str; 6] = ["hosts", "resolv.conf", "passwd", "group", "hostname", "nsswitch.conf"];
const DEVICES: [&str; 7] = ["null", "zero", "full", "random", "urandom", "tty", "pts"];

/// Where an image's programs are.
pub(crate) const PROGRAMS: &str = "/usr/local/bin";
const PATH: &str = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin";

/// Whether a sandbox for this user needs a user namespace: always when we are not root, since only there may an ordinary
/// user mount anything, and for another user than root when we are.
pub(crate) fn needs_user_namespace(uid: u32) -> bool {
    uid != 0 || !nix::unistd::geteuid().is_root()
}

impl Sandbox {
    /// The command that starts the container. Standard streams are the caller's to set.
    pub(crate) fn command(&self) -> Command {
        let mut args = Args::default();
        args.push([
            "--unshare-pid",
            "--unshare-uts",
            "--unshare-ipc",
            "--die-with-parent",
            "--hostname",
        ]);
        args.push([self.hostname.as_str()]);
        if needs_user_namespace(self.uid) {
            let (uid, gid) = (self.uid.to_string(), self.gid.to_string());
            args.push(["--unshare-user", "--uid", &uid, "--gid", &gid]);
        }
        let mut mounts = self.mounts.clone();
        mounts.sort_by_key(|mount| mount.target.components().count());
        let targets: Vec<&Path> = mounts.iter().map(|mount| mount.target.as_path()).collect();
        self.base(&mut args, &targets);
        for mount in &mounts {
            let verb = if mount.read_only { "--ro-bind" } else { "--bind" };
            args.push([verb]);
            args.paths([&mount.source, &mount.target]);
        }
        if let Some(folder) = &self.working_dir {
            if !folder.exists() && !targets.iter().any(|target| folder.starts_with(target)) {
                args.push(["--dir"]);
                args.paths([folder]);
            }
            args.push(["--chdir"]);
            args.paths([folder]);
        } else {
            args.push(["--chdir", "/"]);
        }
        if self.read_only_root {
            args.push(["--remount-ro", "/"]);
        }
        args.push(["--"]);
        let mut command = tool("bwrap");
        command.args(args.0).args(&self.command);
        set_environment(&mut command, &self.env);
        command
    }

    fn base(&self, args: &mut Args, targets: &[&Path]) {
        for folder in ["/usr", "/opt"] {
            bind_read_only(args, Path::new(folder), targets);
        }
        for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
            bind_read_only(args, &Path::new("/").join(name), targets);
        }
        for folder in [
            "/etc", "/run", "/var/run", "/var/tmp", "/var/lib", "/root", "/home", "/dev",
        ] {
            args.push(["--dir", folder]);
        }
        for name in HOST_ETC {
            bind_read_only(args, &Path::new("/etc").join(name), targets);
        }
        for name in OWN_ETC {
            args.push(["--ro-bind"]);
            args.paths([&self.etc.join(name), &Path::new("/etc").join(name)]);
        }
        args.push(["--proc", "/proc", "--ro-bind-try", "/sys", "/sys"]);
        // Not bubblewrap's own --dev: for its terminals it makes a second user namespace, which `nsenter` cannot enter.
        for name in DEVICES {
            let path = format!("/dev/{name}");
            args.push(["--dev-bind-try", &path, &path]);
        }
        args.push([
            "--symlink",
            "pts/ptmx",
            "/dev/ptmx",
            "--symlink",
            "/proc/self/fd",
            "/dev/fd",
        ]);
        for (number, name) in [("0", "stdin"), ("1", "stdout"), ("2", "stderr")] {
            args.push(["--symlink", &format!("/proc/self/fd/{number}"), &format!("/dev/{name}")]);
        }
        for folder in ["/tmp", "/dev/shm"] {
            args.push(["--perms", "1777", "--tmpfs", folder]);
        }
    }
}

/// Shows a host path read-only, unless a volume is to appear below it at a place the host does not have: nothing can be
/// created below a read-only mount, so that folder is then made anew and its entries are shown one by one.
fn bind_read_only(args: &mut Args, path: &Path, targets: &[&Path]) {
    let Ok(kind) = fs::symlink_metadata(path) else { return };
    if kind.is_symlink() {
        if let Ok(destination) = fs::read_link(path) {
            args.push(["--symlink"]);
            args.paths([&destination, path]);
        }
        return;
    }
    let opened = |target: &&&Path| target.starts_with(path) && **target != path && !target.exists();
    if targets.contains(&path) {
        return;
    }
    if !kind.is_dir() || !targets.iter().any(|target| opened(&target)) {
        args.push(["--ro-bind"]);
        args.paths([path, path]);
        return;
    }
    args.push(["--dir"]);
    args.paths([path]);
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    entries.sort();
    for entry in entries {
        bind_read_only(args, &entry, targets);
    }
}

/// The command that runs a further program inside a running sandbox.
pub(crate) fn enter(init: u32, user_namespace: bool, env: &[(String, String)], program: &[String]) -> Command {
    let mut command = tool("nsenter");
    command.args(["--target", &init.to_string(), "--mount", "--pid", "--uts", "--ipc"]);
    if user_namespace {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.arg("--").args(program);
    set_environment(&mut command, env);
    command
}

/// A command by its whole path. The standard library starts one that it must look up in a PATH of the command's own by a
/// fork, which copies this process's page tables and has all its threads fault on every page they write next.
pub(crate) fn tool(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| name.into()))
}

/// Where a program is.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(std::env::split_paths(PATH));
    folders
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

fn set_environment(command: &mut Command, env: &[(String, String)]) {
    command.env_clear().env("PATH", PATH);
    command.envs(env.iter().map(|(name, value)| (name, value)));
}

#[derive(Default)]
struct Args(Vec<std::ffi::OsString>);

impl Args {
    fn push<const N: usize>(&mut self, args: [&str; N]) {
        self.0.extend(args.into_iter().map(Into::into));
    }
    fn paths<const N: usize>(&mut self, paths: [&Path; N]) {
        self.0
            .extend(paths.into_iter().map(|path| path.as_os_str().to_os_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(folder: &Path, command: &[&str]) -> Sandbox {
        let etc = folder.join("etc");
        fs::create_dir_all(&etc).unwrap();
        for name in OWN_ETC {
            fs::write(etc.join(name), "").unwrap();
        }
        Sandbox {
            hostname: "web-0".into(),
            uid: 0,
            gid: 0,
            etc,
            mounts: Vec::new(),
            read_only_root: false,
            working_dir: None,
            env: vec![("A".into(), "b".into())],
            command: command.iter().map(ToString::to_string).collect(),
        }
    }

    fn output(sandbox: &Sandbox) -> String {
        let output = sandbox.command().output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn has_its_own_name_processes_and_environment() {
        let folder = tempfile::tempdir().unwrap();
        let sandbox = sandbox(
            folder.path(),
            &["sh", "-c", "uname -n; echo $A$HOME; ls -d /proc/[0-9]* | wc -l"],
        );
        let seen = output(&sandbox);
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines[..2], ["web-0", "b"]);
        assert!(
            lines[2].parse::<u32>().unwrap() <= 5,
            "sees only its own processes: {seen}"
        );
    }

    #[test]
    fn volumes_appear_where_the_host_has_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("pages");
        let programs = folder.path().join("programs");
        for path in [&pages, &programs] {
            fs::create_dir(path).unwrap();
        }
        fs::write(pages.join("index.html"), "hello").unwrap();
        let mut sandbox = sandbox(
            folder.path(),
            &[
                "sh",
                "-c",
                "cat /usr/share/no-such/html/index.html; touch /data/x /usr/share/no-such/html/y 2>/dev/null; ls /usr/share | wc -l",
            ],
        );
        sandbox.uid = 1000;
        let mount = |source: &Path, target: &str, read_only| Mount {
            source: source.into(),
            target: target.into(),
            read_only,
        };
        sandbox.mounts = vec![
            mount(&pages, "/usr/share/no-such/html", true),
            mount(folder.path(), "/data", false),
            mount(&programs, PROGRAMS, true),
        ];
        let seen = output(&sandbox);
        assert!(seen.starts_with("hello"), "{seen}");
        assert!(
            seen.trim_start_matches("hello").trim().parse::<u32>().unwrap() > 3,
            "host folders stay: {seen}"
        );
        assert!(folder.path().join("x").exists() && !pages.join("y").exists());
    }

    #[test]
    fn a_read_only_root_leaves_tmp_writable() {
        let folder = tempfile::tempdir().unwrap();
        let mut sandbox = sandbox(
            folder.path(),
            &["sh", "-c", "touch /tmp/x && ! touch /x 2>/dev/null && pwd && id -u"],
        );
        sandbox.read_only_root = true;
        sandbox.uid = 4711;
        sandbox.working_dir = Some("/srv/app".into());
        assert_eq!(output(&sandbox), "/srv/app\n4711\n");
    }
}
