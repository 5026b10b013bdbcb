//! Building pinned Go programs into the cache, once, with progress. On a machine without Go it gets one itself: Debian's,
//! unpacked into the cache, which then fetches the version a `go.mod` asks for from the Go module proxy.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use crate::debian;
use crate::paths::Paths;
use crate::pins::Pin;
use crate::shell::{cmd, output};

/// Builds what is missing of `pin` into `target`.
pub(crate) fn build(paths: &Paths, pin: &Pin, target: &Path) -> Result<()> {
    let missing: Vec<_> = pin
        .programs
        .iter()
        .filter(|(_, name)| !target.join(name).exists())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let go = find(paths)?;
    let folder = paths
        .checkout
        .join("pins/go")
        .join(format!("{}-{}", pin.name, pin.version));
    if !folder.exists() {
        bail!(
            "there is no {}: that version of {} is not pinned",
            folder.display(),
            pin.name
        );
    }
    std::fs::create_dir_all(target)?;
    for (import, name) in missing {
        let label = if *name == pin.name {
            name.to_string()
        } else {
            format!("{} {name}", pin.name)
        };
        let label = format!("{label} {}", pin.version);
        // Built beside its place and then renamed: a build that was interrupted leaves nothing that looks finished.
        let unfinished = target.join(format!(".{name}.unfinished"));
        let mut command = Command::new(&go);
        command
            .args(["build", "-v", "-mod=readonly", "-buildvcs=false", "-o"])
            .arg(&unfinished)
            .arg(format!("-ldflags=-s -w {}", pin.link))
            .arg(format!("-tags={}", pin.tags))
            .arg(import)
            .current_dir(&folder)
            .env("CGO_ENABLED", if pin.cgo { "1" } else { "0" })
            .env("GOWORK", "off")
            .env("GOFLAGS", "")
            .env("GOTOOLCHAIN", pin.toolchain.unwrap_or("auto"));
        with_progress(&mut command, &label)?;
        std::fs::rename(&unfinished, target.join(name))?;
    }
    Ok(())
}

/// The folder of a pinned module's files, fetched when it is missing. Go compares it with the `go.sum` beside the pin.
pub(crate) fn module(paths: &Paths, pinned: &str, version: &str, module: &str) -> Result<PathBuf> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Fetched {
        dir: PathBuf,
    }
    let folder = paths.checkout.join("pins/go").join(format!("{pinned}-{version}"));
    let mut download = cmd(find(paths)?, ["mod", "download", "-json"]);
    download.arg(format!("{module}@v{version}"));
    download.current_dir(folder).env("GOWORK", "off").env("GOFLAGS", "");
    let fetched: Fetched = serde_json::from_str(&output(&mut download)?).context("what go says of a module")?;
    Ok(fetched.dir)
}

/// Runs a `go build -v` and shows what it compiles; what it said is part of the error.
fn with_progress(command: &mut Command, label: &str) -> Result<()> {
    let started = Instant::now();
    let bar = ProgressBar::new_spinner().with_message(format!("building {label}"));
    bar.enable_steady_tick(Duration::from_millis(200));
    if bar.is_hidden() {
        eprintln!("building {label}");
    }
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start go")?;
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines() {
            let line = line?;
            bar.set_message(format!("building {label}: {} packages, {line}", said.len() + 1));
            said.push(line);
        }
    }
    let status = child.wait()?;
    bar.finish_and_clear();
    if !status.success() {
        bail!(
            "building {label} failed ({status}):\n{}",
            said[said.len().saturating_sub(20)..].join("\n")
        );
    }
    eprintln!("built {label} in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// A Go that can fetch other versions of itself (1.21 or later).
pub(crate) fn find(paths: &Paths) -> Result<PathBuf> {
    let version = output(cmd("go", ["env", "GOVERSION"]).env("GOTOOLCHAIN", "local")).unwrap_or_default();
    let minor = version
        .trim()
        .strip_prefix("go1.")
        .and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if minor.is_some_and(|minor| minor >= 21) {
        return Ok("go".into());
    }
    let root = paths.cache.join("go-1.24");
    debian::tree(paths, "trixie", &["golang-1.24-go", "golang-1.24-src"], &root)?;
    Ok(root.join("usr/lib/go-1.24/bin/go"))
}
