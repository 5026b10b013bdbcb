//! `./x chart`: lints the Helm chart, renders it with every set of values in `charts/tests/`, and compares the result
//! with the committed files beside them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::shell::{cmd, output};
use crate::{golang, pins};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Overwrite the committed files with what is rendered now
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(paths: &Paths, args: &Args) -> Result<()> {
    crate::prometheus::definitions(paths)?; // the scenario `monitoring_objects_are_accepted` checks the chart against them
    check(paths, args.update)
}

/// Helm; builds it if it is missing.
pub(crate) fn helm(paths: &Paths) -> Result<PathBuf> {
    golang::build(paths, &pins::helm(), &paths.helm())?;
    Ok(paths.helm().join("helm"))
}

/// Lints and renders; fails on a difference unless it should update.
pub(crate) fn check(paths: &Paths, update: bool) -> Result<()> {
    let helm = helm(paths)?;
    let chart = paths.checkout.join("charts/stateward");
    let tests = paths.checkout.join("charts/tests");
    let mut count = 0;
    for entry in std::fs::read_dir(&tests).context("cannot read charts/tests")? {
        let values = entry?.path();
        let name = values.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(case) = name.strip_suffix(".values.yaml") else {
            continue;
        };
        output(cmd(&helm, ["lint", "--strict", "--values"]).arg(&values).arg(&chart))?;
        // The CRDs are checked where they are generated.
        let words = [
            "template",
            "release",
            "--namespace=home",
            "--set=crds.install=false",
            "--values",
        ];
        let rendered = output(cmd(&helm, words).arg(&values).arg(&chart))?;
        let rendered = without_rules(&chart, rendered)?;
        let committed = tests.join(format!("{case}.rendered.yaml"));
        if update {
            std::fs::write(&committed, rendered)?;
        } else if std::fs::read_to_string(&committed).unwrap_or_default() != rendered {
            bail!(
                "the chart renders {name} differently from the committed file; to see the difference: ./x chart --update && git diff"
            );
        }
        count += 1;
    }
    // The schema must reject a misspelled value.
    if output(cmd(&helm, ["template", "--set=replica=2"]).arg(&chart)).is_ok() {
        bail!("the chart accepts values that it does not know");
    }
    println!("chart: {count} sets of values linted and rendered");
    Ok(())
}

/// The RBAC rules are generated and checked elsewhere; this check is about where each list is used.
fn without_rules(chart: &Path, mut rendered: String) -> Result<String> {
    for name in ["rules.yaml", "rules-cluster.yaml", "rules-own.yaml"] {
        let rules = std::fs::read_to_string(chart.join("files").join(name))?;
        rendered = rendered.replace(rules.trim_end(), &format!("# as in files/{name}"));
    }
    Ok(rendered)
}
