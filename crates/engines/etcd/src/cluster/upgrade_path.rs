//! Which version may follow which (docs/etcd-facts.md): one minor up at a time, patch levels freely, and what etcd documents
//! as needed before.

use crate::api::EtcdVersion;

use super::intent::Intent;
use super::record::Record;
use super::world::World;

/// Why a version is not followed, and what to do instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.version {wanted} cannot follow {current}: {advice}")]
pub struct PathRefused {
    /// What runs.
    pub current: EtcdVersion,
    /// What the spec says.
    pub wanted: EtcdVersion,
    /// What to set first.
    pub advice: String,
}

/// Versions that lose or change data after a crash (etcd-io/etcd issue 13766); 3.5.3 is the first without that.
fn corrupts_data(version: &EtcdVersion) -> bool {
    (version.major(), version.minor()) == (3, 5) && !version.at_least(3, 5, 3)
}

const CORRUPTS: &str = "etcd 3.5.0 to 3.5.2 can corrupt data; set spec.version to 3.5.3 or later";

/// Why no cluster may begin with this version.
pub(super) fn check_first(version: &EtcdVersion) -> Option<String> {
    corrupts_data(version).then(|| format!("spec.version {version}: {CORRUPTS}"))
}

/// Whether the path from one version to another can be gone. A cluster that runs what must not be chosen any more stays.
pub fn check_path(current: &EtcdVersion, wanted: &EtcdVersion) -> Result<(), PathRefused> {
    if corrupts_data(wanted) && current != wanted {
        return Err(PathRefused {
            current: current.clone(),
            wanted: wanted.clone(),
            advice: CORRUPTS.into(),
        });
    }
    check_step(current, wanted)
}

fn check_step(current: &EtcdVersion, wanted: &EtcdVersion) -> Result<(), PathRefused> {
    let refuse = |advice: String| {
        Err(PathRefused {
            current: current.clone(),
            wanted: wanted.clone(),
            advice,
        })
    };
    if current.major() != wanted.major() {
        return refuse(format!("only versions {}.x can follow", current.major()));
    }
    let (from, to) = (current.minor(), wanted.minor());
    if to == from {
        return Ok(());
    }
    if to > from + 1 {
        return refuse(format!(
            "upgrades go one minor version at a time; set spec.version to a 3.{}.x first",
            from + 1
        ));
    }
    if to == from + 1 {
        // Older 3.5 can bring removed members back; 3.7 reads only what a late 3.6 has written.
        return match from {
            5 if !current.at_least(3, 5, 26) => refuse(
                "3.6 needs 3.5.26 or later everywhere first; set spec.version to 3.5.26 or later, then to 3.6".into(),
            ),
            6 if !current.at_least(3, 6, 11) => refuse(
                "3.7 needs 3.6.11 or later everywhere first; set spec.version to 3.6.11 or later, then to 3.7".into(),
            ),
            _ => Ok(()),
        };
    }
    if to + 1 == from && from >= 6 {
        return Ok(()); // etcd's own downgrade: 3.7 to 3.6, 3.6 to 3.5.
    }
    if to + 1 == from {
        return refuse(format!(
            "etcd cannot go back from 3.{from} to 3.{to}; keep {current}, or restore a backup into a new cluster"
        ));
    }
    refuse(format!(
        "downgrades go one minor version at a time, and only from 3.6 on; keep {current}"
    ))
}

/// The version that pods are made with, and why the spec's is not followed where it is not.
pub(super) fn accepted(intent: &Intent, record: &Record, world: &World) -> (EtcdVersion, Option<PathRefused>) {
    let Some(current) = &record.current else {
        return (intent.version.clone(), None);
    };
    if let Some(refused) = check_authentication(intent, record, world) {
        return (current.clone(), Some(refused));
    }
    // What was accepted by an operator that did not know better is brought to its end: half of the members may run it.
    let check_path = |from: &EtcdVersion, to: &EtcdVersion| match &record.target {
        Some(target) if target == to => check_step(from, to),
        _ => check_path(from, to),
    };
    // Members may run the last accepted version already: what comes next must follow from there too, unless it is the
    // way back to where all came from.
    let from_target = match &record.target {
        Some(target) if !intent.version.same_minor(current) => check_path(target, &intent.version),
        _ => Ok(()),
    };
    match check_path(current, &intent.version).and(from_target) {
        Ok(()) => (intent.version.clone(), None),
        Err(refused) => {
            // The last accepted one goes on, unless it was accepted before anybody had said what runs.
            let last = record
                .target
                .as_ref()
                .filter(|target| check_path(current, target).is_ok());
            (last.unwrap_or(current).clone(), Some(refused))
        }
    }
}

/// Authentication must be off for the roll from 3.4 to 3.5 (etcd's upgrade guide). One that has begun goes on: a cluster
/// of both versions is worse.
fn check_authentication(intent: &Intent, record: &Record, world: &World) -> Option<PathRefused> {
    let current = record.current.as_ref()?;
    let crosses = current.minor() == 4 && intent.version.minor() == 5 && is_pending(record, &intent.version);
    (crosses && world.auth_enabled == Some(true)).then(|| PathRefused {
        current: current.clone(),
        wanted: intent.version.clone(),
        advice: "etcd does not support a rolling upgrade from 3.4 to 3.5 while authentication is enabled; run etcdctl auth disable, and enable it again when the upgrade is done; or set spec.version back".into(),
    })
}

/// The version that pods are made with now. Another minor version, up or down, can run only when the members are
/// ready for it, so what comes back or joins meanwhile still runs the one before.
pub(super) fn of_new_pods(record: &Record, goal: &EtcdVersion) -> EtcdVersion {
    match &record.current {
        Some(current) if is_pending(record, goal) => current.clone(),
        _ => goal.clone(),
    }
}

/// The goal is another minor version, and the members are not ready for it yet.
pub(super) fn is_pending(record: &Record, goal: &EtcdVersion) -> bool {
    let leaves = |current: &EtcdVersion| !goal.same_minor(current);
    let ready = record.ready_for.as_ref().is_some_and(|ready| ready.same_minor(goal));
    record.current.as_ref().is_some_and(leaves) && !ready
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(from: &str, to: &str) -> bool {
        check_path(&from.parse().unwrap(), &to.parse().unwrap()).is_ok()
    }

    #[test]
    fn one_minor_at_a_time_up() {
        assert!(allowed("3.2.13", "3.3.27"));
        assert!(allowed("3.4.23", "3.5.35"));
        assert!(!allowed("3.2.13", "3.4.23"));
        assert!(!allowed("3.4.23", "3.6.16"));
    }

    #[test]
    fn versions_that_corrupt_data_can_only_be_left() {
        for broken in ["3.5.0", "3.5.1", "3.5.2"] {
            assert!(!allowed("3.4.23", broken) && !allowed("3.5.9", broken));
            assert!(allowed(broken, broken) && allowed(broken, "3.5.35"));
            assert!(check_first(&broken.parse().unwrap()).is_some());
        }
        assert!(!allowed("3.5.0", "3.5.1"));
        assert!(allowed("3.4.23", "3.5.3"));
        assert_eq!(check_first(&"3.5.3".parse().unwrap()), None);
    }

    #[test]
    fn patch_levels_go_both_ways() {
        assert!(allowed("3.5.35", "3.5.9"));
        assert!(allowed("3.5.9", "3.5.35"));
    }

    #[test]
    fn some_steps_need_a_late_patch_first() {
        assert!(!allowed("3.5.16", "3.6.16"));
        assert!(allowed("3.5.26", "3.6.16"));
        assert!(!allowed("3.6.10", "3.7.3"));
        assert!(allowed("3.6.16", "3.7.3"));
    }

    #[test]
    fn back_only_where_etcd_can() {
        assert!(allowed("3.7.3", "3.6.16"));
        assert!(allowed("3.6.16", "3.5.35"));
        assert!(!allowed("3.5.35", "3.4.23"));
        assert!(!allowed("3.7.3", "3.5.35"));
    }

    #[test]
    fn a_refusal_says_what_to_set_first() {
        let refused = check_path(&"3.4.23".parse().unwrap(), &"3.6.16".parse().unwrap()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "spec.version 3.6.16 cannot follow 3.4.23: upgrades go one minor version at a time; set spec.version to a 3.5.x first"
        );
    }
}
