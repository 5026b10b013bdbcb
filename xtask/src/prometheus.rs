//! The CRDs of the Prometheus operator for the kinds that the chart uses, from its Go module.

use anyhow::{Context, Result};

use crate::paths::Paths;
use crate::{golang, pins};

const NAME: &str = "prometheus-operator";

/// Fetches what is missing into the cache, where the end-to-end suite finds it.
pub(crate) fn definitions(paths: &Paths) -> Result<()> {
    let folder = paths.cache.join(NAME).join(pins::PROMETHEUS_OPERATOR).join("crds");
    if folder.exists() {
        return Ok(());
    }
    let import = "github.com/prometheus-operator/prometheus-operator";
    let module = golang::module(paths, NAME, pins::PROMETHEUS_OPERATOR, import)?;
    let unfinished = folder.with_extension("unfinished");
    std::fs::create_dir_all(&unfinished)?;
    for kind in ["servicemonitors", "prometheusrules"] {
        let from = module.join(format!(
            "example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
        ));
        let text = std::fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
        std::fs::write(unfinished.join(format!("{kind}.yaml")), text)?;
    }
    Ok(std::fs::rename(unfinished, folder)?)
}
