//! What one container sees, as arguments for bubblewrap, and how to run a further program inside it. Starts nothing
//! itself.
//!
//! The root is an empty in-memory file system with either the image's own root or the host's programs and libraries read-only
//! ([`root`]), in the latter case the image's programs in front of them at `/usr/local/bin`, and the volumes. The network is that of
//! the pod: the process that starts the container is already in it. Users: where the pod asks for another user than ours, a user
//! namespace maps that number to us, so every volume is readable and writable whatever `runAsUser` and `fsGroup` say.

mod root;

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
    /// The image's own root; without it, the host's programs are shown.
    pub(crate) root: Option<PathBuf>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) read_only_root: bool,
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) command: Vec<String>,
}

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
        if let Some(root) = &self.root {
            for mount in &mut mounts {
                mount.target = root::resolve(root, &mount.target);
            }
        }
        mounts.sort_by_key(|mount| mount.target.components().count());
        let targets: Vec<&Path> = mounts.iter().map(|mount| mount.target.as_path()).collect();
        self.base(&mut args, &targets);
        for mount in &mounts {
            let verb = if mount.read_only { "--ro-bind" } else { "--bind" };
            args.push([verb]);
            args.paths([&mount.source, &mount.target]);
        }
        if let Some(folder) = &self.working_dir {
            if !self.has(folder) && !targets.iter().any(|target| folder.starts_with(target)) {
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

    /// Whether the root holds a path by itself.
    fn has(&self, path: &Path) -> bool {
        let root = self.root.as_deref().unwrap_or(Path::new("/"));
        root.join(path.strip_prefix("/").unwrap_or(path)).exists()
    }

    fn base(&self, args: &mut Args, targets: &[&Path]) {
        match &self.root {
            Some(root) => root::own(args, root, targets),
            None => root::host(args, targets),
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
    use std::fs;

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
            root: None,
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

    /// A root with a shell, its libraries, and nothing else.
    fn small_root(root: &Path) {
        let sh = fs::canonicalize("/bin/sh").unwrap();
        let said = Command::new("ldd").arg(&sh).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let libraries = said.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.map(Path::new).chain([Path::new("/usr/bin/sh")]) {
            let place = root.join(file.strip_prefix("/").unwrap());
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::copy(file, place).unwrap();
        }
        for folder in ["etc", "var/lib/db"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("/run", root.join("var/run")).unwrap();
        for (file, text) in [
            ("etc/db.conf", "own"),
            ("etc/hosts", "never seen"),
            ("var/lib/db/seed", ""),
        ] {
            fs::write(root.join(file), text).unwrap();
        }
    }

    #[test]
    fn an_own_root_shows_nothing_of_the_host_and_stays_as_it_is() {
        // given a root with a shell and a few files, a volume below one of its links, and one where it has nothing
        let folder = tempfile::tempdir().unwrap();
        let (root, data) = (folder.path().join("root"), folder.path().join("data"));
        small_root(&root);
        fs::create_dir(&data).unwrap();
        let script = "echo /usr/bin/*; read line </etc/db.conf; read hosts </etc/hosts; echo $line$hosts; \
            : >/var/lib/db/new && echo made; : >/data/x; : >/run/db/y; echo 2>/dev/null >/usr/z || echo refused";
        let mut sandbox = sandbox(folder.path(), &["/usr/bin/sh", "-c", script]);
        sandbox.root = Some(root.clone());
        sandbox.uid = 4711;
        for target in ["/data", "/var/run/db"] {
            sandbox.mounts.push(Mount {
                source: data.clone(),
                target: target.into(),
                read_only: false,
            });
        }
        // when a program runs there
        let seen = output(&sandbox);
        // then it finds only what the root holds, may write beside its files, and leaves no trace in it
        assert_eq!(seen, "/usr/bin/sh\nown\nmade\nrefused\n");
        assert!(data.join("x").exists() && data.join("y").exists());
        assert!(!root.join("var/lib/db/new").exists() && !root.join("data").exists());
    }
}
