//! Archives of a Maven repository, fetched by Maven itself into the cache. On a machine without Maven it is Debian's, unpacked into
//! a root folder of its own.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha512};

use crate::paths::Paths;
use crate::progress::Step;
use crate::shell::{cmd, output};
use crate::{debian, oci};

/// Maven's own way to fetch one file.
const GET: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get";

/// Fetches `group:artifact:version:zip`, and unpacks the one folder in it as `target`.
pub(crate) fn unpack(paths: &Paths, artifact: &str, sha512: &str, target: &Path, label: &str) -> Result<()> {
    let repository = paths.cache.join("maven");
    let archive = repository.join(place(artifact)?);
    let step = Step::new(label);
    if !archive.exists() {
        fs::create_dir_all(&repository)?;
        let mut command = maven(paths, label)?;
        step.say(&format!("waiting for Maven to download {artifact}"));
        command
            .args(["--batch-mode", "--quiet", GET, "-Dtransitive=false"])
            .arg(format!("-Dmaven.repo.local={}", repository.display()))
            .arg(format!("-Dartifact={artifact}"));
        output(command.current_dir(&repository)).with_context(|| format!("cannot fetch {artifact}"))?;
    }
    step.say("checking and unpacking the archive");
    let found = checksum(&archive)?;
    if found != sha512 {
        fs::remove_file(&archive)?;
        bail!("{artifact} has the SHA-512 checksum {found}, and not {sha512} as pinned");
    }
    let parent = target.parent().context("an archive needs a folder")?;
    fs::create_dir_all(parent)?;
    let work = tempfile::Builder::new().prefix("unzip-").tempdir_in(&paths.cache)?;
    output(cmd(unzip(paths)?, ["-q", "-d"]).arg(work.path()).arg(&archive))?;
    let entries = fs::read_dir(work.path())?.collect::<Result<Vec<_>, _>>()?;
    ensure!(entries.len() == 1, "{artifact} does not hold one folder");
    fs::rename(entries[0].path(), target).with_context(|| format!("cannot move to {}", target.display()))
}

/// Where a Maven repository has an artifact.
fn place(artifact: &str) -> Result<PathBuf> {
    let parts: Vec<&str> = artifact.split(':').collect();
    let [group, name, version, kind] = parts[..] else {
        bail!("{artifact} is not group:artifact:version:type");
    };
    let folder = Path::new(&group.replace('.', "/")).join(name).join(version);
    Ok(folder.join(format!("{name}-{version}.{kind}")))
}

fn checksum(file: &Path) -> Result<String> {
    let mut hash = Sha512::new();
    let mut file = fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The machine's Maven, or Debian's in a sandbox in which its folder is the root.
fn maven(paths: &Paths, label: &str) -> Result<Command> {
    if output(&mut cmd("mvn", ["--version"])).is_ok() {
        return Ok(cmd("mvn", [""; 0]));
    }
    let root = paths.cache.join("maven-program");
    if !root.exists() {
        let work = tempfile::Builder::new().prefix("maven-").tempdir_in(&paths.cache)?;
        let made = work.path().join("root");
        let packages = ["maven", "openjdk-17-jre-headless", "bash", "coreutils", "dash", "sed"];
        let packages = packages.map(str::to_owned);
        debian::root(paths, "bookworm", &packages, &made, &format!("{label}: Maven"))?;
        for folder in ["dev", "proc", "tmp", "etc"] {
            fs::create_dir_all(made.join(folder))?;
        }
        fs::rename(&made, &root)?;
    }
    let mut command = cmd("bwrap", ["--unshare-pid", "--die-with-parent", "--bind"]);
    command
        .arg(&root)
        .args(["/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]);
    command.args(["--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf"]);
    command.args(["--ro-bind-try", "/etc/hosts", "/etc/hosts", "--bind"]);
    command.arg(&paths.cache).arg(&paths.cache);
    let java = format!("/usr/lib/jvm/java-17-openjdk-{}", oci::architecture());
    command.args([
        "--setenv",
        "JAVA_HOME",
        &java,
        "--setenv",
        "PATH",
        "/usr/bin:/bin",
        "--",
    ]);
    command.args(["bash", "/usr/share/maven/bin/mvn"]);
    Ok(command)
}

/// The machine's unzip, or Debian's.
fn unzip(paths: &Paths) -> Result<PathBuf> {
    if output(&mut cmd("unzip", ["-v"])).is_ok() {
        return Ok("unzip".into());
    }
    let folder = paths.cache.join("unzip");
    debian::files(paths, "bookworm", &["unzip"], &["usr/bin/unzip"], &folder)?;
    Ok(folder.join("unzip"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_are_where_maven_puts_them() {
        let expected = Path::new("org/example/db-zip/db/7.9.1/db-7.9.1.zip");
        assert_eq!(place("org.example.db-zip:db:7.9.1:zip").unwrap(), expected);
        assert!(place("org.example:db").is_err());
    }
}
