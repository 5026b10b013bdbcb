//! Planners are pure: none of their crates may depend, directly or indirectly, on a client, a runtime, a timer or a
//! source of randomness. `clippy.toml` forbids the clocks of the standard library.

use anyhow::{Result, bail};

use crate::paths::Paths;
use crate::shell::{cmd, output};

/// The crates that plan.
const PURE: [&str; 3] = ["stateward-core", "stateward-etcd", "stateward-mysql"];

/// What these crates must not link with.
const IMPURE: [&str; 8] = [
    "tokio",
    "hyper",
    "kube-client",
    "kube-runtime",
    "reqwest",
    "rustls",
    "rand",
    "getrandom",
];

pub(super) fn check(paths: &Paths) -> Result<()> {
    for package in PURE {
        let words = [
            "tree",
            "--locked",
            "--edges=normal",
            "--prefix=none",
            "--format={p}",
            "--package",
            package,
        ];
        let tree = output(cmd("cargo", words).current_dir(&paths.checkout))?;
        if let Some(found) = impure(&tree) {
            bail!(
                "{package} is pure but depends on {found}. To see the path:  cargo tree -e normal -p {package} -i {found}"
            );
        }
    }
    Ok(())
}

/// The first forbidden crate of a tree. Lines contain a name, a version, and sometimes more.
fn impure(tree: &str) -> Option<&'static str> {
    let mut names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.find_map(|name| IMPURE.into_iter().find(|impure| *impure == name))
}

#[cfg(test)]
mod tests {
    use super::impure;

    #[test]
    fn a_client_far_down_the_tree_is_found() {
        let pure = "stateward-etcd v0.1.0 (here)\njiff v0.2.1\nkube-core v5.0.0\ntokio-like v1.0.0\n";
        assert_eq!(impure(pure), None);
        assert_eq!(impure(&format!("{pure}tokio v1.2.3 (*)\n")), Some("tokio"));
    }
}
