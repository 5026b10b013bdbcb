//! Programs out of Debian's packages, unpacked into the cache and never installed: installing etcd or containerd would
//! start a service, and needs root. Works as an ordinary user, and for another release of Debian than the machine's own,
//! since apt gets folders of its own; the mirror is the one the machine already uses.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::progress::Step;
use crate::shell::{cmd, output};

/// The keys of every Debian release, present on every Debian machine.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Unpacks packages of one Debian release and moves some of their files to `target`, all or nothing.
pub(crate) fn files(paths: &Paths, release: &str, packages: &[&str], files: &[&str], target: &Path) -> Result<()> {
    let name = |file: &str| Path::new(file).file_name().map(|name| target.join(name));
    if files.iter().all(|file| name(file).is_some_and(|path| path.exists())) {
        return Ok(());
    }
    let work = unpack(paths, release, packages)?;
    let ready = work.path().join("ready");
    fs::create_dir(&ready)?;
    for file in files {
        let source = work.path().join("root").join(file);
        let base = source
            .file_name()
            .with_context(|| format!("{file} has no name"))?
            .to_owned();
        fs::rename(&source, ready.join(base))
            .with_context(|| format!("{} does not contain {file}", packages.join(", ")))?;
    }
    put(&ready, target)
}

/// The file beside unpacked files that says which packages they are from.
const RECORD: &str = "packages.txt";

/// The same, and returns the packages that the files are from, one per line. They are fetched again if that is not known.
pub(crate) fn recorded_files(
    paths: &Paths,
    release: &str,
    packages: &[&str],
    files: &[&str],
    target: &Path,
) -> Result<Vec<String>> {
    let record = target.join(RECORD);
    if !record.exists() {
        let work = unpack(paths, release, packages)?;
        fs::create_dir_all(target)?;
        let mut contents = Vec::new();
        for archive in archives(work.path())? {
            contents.push(describe(&archive)?);
        }
        contents.sort();
        // One by one and the record last: programs that others run from here are never missing.
        for file in files {
            let source = work.path().join("root").join(file);
            let name = source.file_name().with_context(|| format!("{file} has no name"))?;
            fs::rename(&source, target.join(name))
                .with_context(|| format!("{} does not contain {file}", packages.join(", ")))?;
        }
        let written = work.path().join(RECORD);
        fs::write(&written, contents.join("\n") + "\n")?;
        fs::rename(&written, &record)?;
    }
    let text = fs::read_to_string(&record).with_context(|| format!("cannot read {}", record.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Unpacks packages of one Debian release as a whole, as if `target` were the root folder.
pub(crate) fn tree(paths: &Paths, release: &str, packages: &[&str], target: &Path) -> Result<()> {
    if target.exists() {
        return Ok(());
    }
    let work = unpack(paths, release, packages)?;
    put(&work.path().join("root"), target)
}

/// Unpacks packages of one Debian release with all that they depend on, the C library too, into `target`: a root folder in
/// which their programs run without anything of this machine. Returns what it is made of, a line a package.
pub(crate) fn root(
    paths: &Paths,
    release: &str,
    packages: &[String],
    target: &Path,
    label: &str,
) -> Result<Vec<String>> {
    let work = tempfile::Builder::new().prefix("packages-").tempdir_in(&paths.cache)?;
    closure(paths, release, packages, work.path(), label)
        .with_context(|| format!("cannot fetch {} of Debian {release}", packages.join(", ")))?;
    let archives = archives(work.path())?;
    // Older releases do not bring these links themselves, and programs rely on both paths.
    for folder in ["bin", "lib", "lib64", "sbin"] {
        fs::create_dir_all(target.join("usr").join(folder))?;
        if fs::symlink_metadata(target.join(folder)).is_err() {
            std::os::unix::fs::symlink(Path::new("usr").join(folder), target.join(folder))?;
        }
    }
    let step = Step::new(label);
    let mut contents = Vec::new();
    for (number, archive) in archives.iter().enumerate() {
        step.say(&format!("unpacking package {} of {}", number + 1, archives.len()));
        contents.push(describe(archive)?);
        extract(archive, target)?;
    }
    contents.sort();
    Ok(contents)
}

/// The packages in a folder.
fn archives(folder: &Path) -> Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let paths: Vec<PathBuf> = paths.collect::<Result<_>>()?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    Ok(paths.into_iter().filter(is_package).collect())
}

/// The name, version and architecture of a package.
fn describe(archive: &Path) -> Result<String> {
    let format = "--showformat=${Package} ${Version} ${Architecture}\n";
    let text = output(cmd("dpkg-deb", ["--show", format]).arg(archive))?;
    Ok(text.trim().to_owned())
}

/// What a root folder does without: it is not read by programs, and often larger than they are. Licences stay.
const LEFT_OUT: [&str; 8] = [
    "./usr/share/info/*",
    "./usr/share/lintian/*",
    "./usr/share/locale/*",
    "./usr/share/man/*",
    "./var/cache/*",
    "./usr/share/doc/*/examples*",
    "./usr/share/doc/*/*.gz",
    "./usr/share/doc/*/*.md",
];

/// Unpacks one package. Unlike `dpkg-deb --extract`, this keeps links to folders where a package has the folder.
fn extract(archive: &Path, target: &Path) -> Result<()> {
    let mut reader = cmd("dpkg-deb", ["--fsys-tarfile"]);
    let mut reader = reader
        .arg(archive)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start dpkg-deb")?;
    let mut unpack = cmd("tar", ["--extract", "--keep-directory-symlink", "--no-same-owner"]);
    unpack
        .args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")))
        .arg("--directory")
        .arg(target);
    let said = unpack.stdin(reader.stdout.take().context("dpkg-deb has no output")?);
    let said = said.output().context("cannot start tar")?;
    if !reader.wait()?.success() || !said.status.success() {
        let text = String::from_utf8_lossy(&said.stderr);
        bail!("cannot unpack {}: {}", archive.display(), text.trim());
    }
    Ok(())
}

/// Downloads packages and what they depend on into `folder`, for a machine on which nothing is installed.
fn closure(paths: &Paths, release: &str, packages: &[String], folder: &Path, label: &str) -> Result<()> {
    let apt = Apt::new(paths, release)?;
    fs::create_dir(folder.join("partial"))?;
    let download = || {
        let mut command = apt.get("-q");
        for (key, value) in [
            ("Dir::Cache::Archives", folder),
            // Nobody else uses these folders, and the lock of the machine's own state needs root.
            ("Debug::NoLocking", Path::new("1")),
        ] {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        command.args(["--yes", "--no-install-recommends", "--download-only", "install"]);
        with_progress(command.args(packages), label)
    };
    if apt.has_lists()? && download().is_ok() {
        return Ok(());
    }
    Step::new(label).say(&format!("reading the package lists of Debian {release}"));
    output(apt.get("-qq").arg("update"))?;
    download()
}

/// Runs apt and shows what it fetches.
fn with_progress(command: &mut Command, label: &str) -> Result<()> {
    let step = Step::new(label);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start apt-get")?;
    let mut size = String::new();
    for line in BufReader::new(child.stdout.take().context("apt-get has no output")?).lines() {
        let line = line?;
        if let Some(rest) = line.strip_prefix("Need to get ") {
            size = rest.trim_end_matches(" of archives.").to_owned();
        } else if let Some((number, _)) = line.strip_prefix("Get:").and_then(|rest| rest.split_once(' ')) {
            step.say(&format!("downloading package {number} ({size} in all)"));
        }
    }
    let result = child.wait_with_output()?;
    if !result.status.success() {
        bail!("apt-get failed: {}", String::from_utf8_lossy(&result.stderr).trim());
    }
    Ok(())
}

/// Downloads and unpacks into the folder `root` of a temporary folder inside the cache.
fn unpack(paths: &Paths, release: &str, packages: &[&str]) -> Result<tempfile::TempDir> {
    eprintln!("fetching {} from Debian {release}", packages.join(", "));
    let work = tempfile::Builder::new().prefix("unpack-").tempdir_in(&paths.cache)?;
    download(paths, release, packages, work.path())
        .with_context(|| format!("cannot fetch {} of Debian {release}", packages.join(", ")))?;
    for archive in archives(work.path())? {
        output(cmd("dpkg-deb", ["-x"]).arg(&archive).arg(work.path().join("root")))?;
    }
    Ok(work)
}

/// Moves a finished folder to its place. Both are in the cache, so that this is one rename.
fn put(ready: &Path, target: &Path) -> Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if target.exists() {
        fs::remove_dir_all(target)?;
    }
    fs::rename(ready, target).with_context(|| format!("cannot move into {}", target.display()))
}

/// Downloads packages into `folder` with an apt that has its own state, so that neither root nor the machine's lists of
/// packages are needed.
fn download(paths: &Paths, release: &str, packages: &[&str], folder: &Path) -> Result<()> {
    let apt = Apt::new(paths, release)?;
    let download = |apt: &Apt| output(apt.get("-qq").current_dir(folder).arg("download").args(packages));
    if apt.has_lists()? && download(&apt).is_ok() {
        return Ok(());
    }
    output(apt.get("-qq").arg("update"))?; // no lists yet, or so old that the mirror dropped what they name
    download(&apt).map(drop)
}

/// An apt with folders of its own.
struct Apt {
    root: PathBuf,
}

impl Apt {
    fn new(paths: &Paths, release: &str) -> Result<Self> {
        let root = paths.cache.join("apt").join(release);
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::write(root.join("status"), "")?;
        let signed = if Path::new(KEYRING).exists() {
            format!("[signed-by={KEYRING}] ")
        } else {
            String::new()
        };
        fs::write(
            root.join("sources.list"),
            format!("deb {signed}{} {release} main\n", mirror()?),
        )?;
        Ok(Self { root })
    }

    fn has_lists(&self) -> Result<bool> {
        let mut lists = fs::read_dir(self.root.join("lists"))?;
        Ok(lists.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains("Packages"))))
    }

    fn get(&self, quiet: &str) -> Command {
        let mut command = cmd("apt-get", [quiet]);
        let settings = [
            ("Dir::State::Lists", self.root.join("lists")),
            // What this machine has installed, perhaps from elsewhere, does not matter.
            ("Dir::State::Status", self.root.join("status")),
            ("Dir::Cache", self.root.join("cache")),
            ("Dir::Etc::SourceList", self.root.join("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".into()),
            ("Acquire::Languages", "none".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
            ("APT::Sandbox::User", "root".into()), // the folders are this user's, whoever that is
        ];
        for (key, value) in settings {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        command
    }
}

/// The Debian mirror that this machine's own apt uses for its main release.
fn mirror() -> Result<String> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = output(&mut cmd(
        "apt-get",
        ["indextargets", "--format", format, "Created-By: Packages"],
    ))
    .context("apt is needed: this set-up fetches programs from Debian's packages")?;
    for line in targets.lines() {
        if let [uri, release, "main"] = line.split(' ').collect::<Vec<_>>()[..]
            && !release.contains(['-', '/'])
        {
            return Ok(uri.to_owned());
        }
    }
    bail!("apt has no source with Debian's main component; add one to /etc/apt/sources.list")
}
