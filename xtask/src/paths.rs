//! Paths: the checkout, and the cache folder outside it, which checkouts share.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folders that every task uses.
pub(crate) struct Paths {
    /// The root of the checkout.
    pub(crate) checkout: PathBuf,
    /// `$STATEWARD_CACHE`, or `stateward` in the user's cache folder.
    pub(crate) cache: PathBuf,
}

impl Paths {
    pub(crate) fn find() -> Result<Self> {
        // Not CARGO_MANIFEST_DIR: clones that share a cache share this program, and each one means its own checkout.
        let here = std::env::current_dir().context("no current folder")?;
        let is_checkout = |folder: &&Path| folder.join("xtask/Cargo.toml").is_file();
        let checkout = here.ancestors().find(is_checkout);
        let checkout = checkout
            .context("not in a checkout of Stateward; run the ./x of one")?
            .to_owned();
        let cache = match (std::env::var_os("STATEWARD_CACHE"), std::env::var_os("XDG_CACHE_HOME")) {
            (Some(cache), _) => PathBuf::from(cache),
            (None, Some(user_cache)) => PathBuf::from(user_cache).join("stateward"),
            (None, None) => {
                let home = std::env::var_os("HOME").context("neither STATEWARD_CACHE nor HOME is set")?;
                PathBuf::from(home).join(".cache/stateward")
            }
        };
        std::fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
        Ok(Self {
            checkout,
            cache: cache.canonicalize()?,
        })
    }

    /// The programs of one etcd version: `etcd`, `etcdctl` and, since 3.5, `etcdutl`.
    pub(crate) fn etcd(&self, version: &str) -> PathBuf {
        self.cache.join("etcd").join(version)
    }

    /// Where the images of the catalogue are, one folder each.
    pub(crate) fn images(&self) -> PathBuf {
        self.cache.join("images")
    }

    /// The folder of a `kubectl` version that Debian packages.
    pub(crate) fn kubectl(&self, version: &str) -> PathBuf {
        self.cache.join("kubectl").join(version)
    }

    /// The folder of the Helm version that tests the chart.
    pub(crate) fn helm(&self) -> PathBuf {
        self.cache.join("helm").join(crate::pins::HELM)
    }

    /// The folder of the cert-manager that `TLS.certManager` is tested with.
    pub(crate) fn cert_manager(&self) -> PathBuf {
        self.cache.join("cert-manager").join(crate::pins::CERT_MANAGER)
    }
}
