//! Backups of this cluster: the EtcdBackup that `spec.backup` asks for is kept as the spec says, and before a new minor version
//! one more is taken, where a store is named. Until that one has succeeded the version is held back.

use crate::api::EtcdVersion;
use crate::api::names;

use super::intent::Intent;
use super::record::Record;
use super::world::{KeptBackup, World};
use super::{Effect, Note, Reason, Step, View, Work};

/// Makes, updates or takes away the EtcdBackup that the spec asks for. It never stands in the way of anything else.
pub(super) fn keep(view: &View<'_>) -> Vec<Effect> {
    match (&view.intent.backup, &view.world.kept_backup) {
        (Some(_), KeptBackup::None) => vec![Effect::ApplyBackup],
        (Some(wanted), KeptBackup::Ours { hash, .. }) if wanted != hash => vec![Effect::ApplyBackup],
        (None, KeptBackup::Ours { uid, .. }) => vec![Effect::DropBackup { uid: uid.clone() }],
        (Some(_), KeptBackup::Theirs) => vec![Effect::Tell(Note {
            warning: true,
            reason: Reason::BackupNameTaken,
            message: taken(view),
        })],
        _ => Vec::new(),
    }
}

/// The name is somebody else's: said where the user looks, once nothing more urgent is to be said.
pub(super) fn clash(view: &View<'_>) -> Option<Step> {
    let clash = view.intent.backup.is_some() && view.world.kept_backup == KeptBackup::Theirs;
    clash.then(|| Step::new(Work::Blocked, Reason::BackupNameTaken, taken(view)))
}

fn taken(view: &View<'_>) -> String {
    format!(
        "spec.backup is not followed: EtcdBackup {} exists and is not this cluster's; delete it, or take spec.backup away",
        names::kept_backup(&view.intent.name)
    )
}

/// The version that may be rolled out: the wanted one, or the one before until a backup has succeeded. The name of that
/// backup is recorded before it is made, so that no earlier one of the same name can stand for it.
pub(super) fn hold(intent: &Intent, record: &mut Record, world: &World, wanted: EtcdVersion) -> EtcdVersion {
    let Some(current) = record.current.clone() else {
        return wanted;
    };
    let target = record.target.clone().unwrap_or_else(|| current.clone());
    let up = wanted.minor() > current.minor();
    let begun = target.minor() > current.minor();
    if !up || !intent.backup_first {
        record.upgrade_backup = None;
        return wanted;
    }
    if begun {
        return wanted;
    }
    let base = format!("{}-before-{wanted}-", intent.name);
    match &record.upgrade_backup {
        Some(name)
            if name.starts_with(&base) && world.upgrade_backup.as_ref().is_some_and(|backup| backup.succeeded) =>
        {
            wanted
        }
        Some(name) if name.starts_with(&base) => target,
        _ => {
            let suffix = world
                .fresh_names
                .first()
                .map_or("1", |name| name.0.rsplit('-').next().unwrap_or("1"));
            record.upgrade_backup = Some(format!("{base}{}", suffix.chars().take(5).collect::<String>()));
            target
        }
    }
}

/// Takes the backup that the version waits for.
pub(super) fn before_upgrade(view: &View<'_>) -> Option<Step> {
    let name = view.record.upgrade_backup.as_ref()?;
    let wanted = &view.intent.version;
    if view.refused.is_some() || view.version.minor() >= wanted.minor() {
        return None;
    }
    let how = "To go on without it, set spec.updateStrategy.skipSnapshot: true; to stay, set spec.version back";
    match &view.world.upgrade_backup {
        None => Some(
            Step::new(
                Work::Upgrading,
                Reason::BackupFirst,
                format!("taking a backup before the upgrade to {wanted}: EtcdBackup {name}"),
            )
            .with([Effect::TakeBackup {
                name: name.clone(),
                version: wanted.clone(),
            }]),
        ),
        Some(backup) if backup.trouble.is_empty() => Some(Step::new(
            Work::Upgrading,
            Reason::BackupFirst,
            format!("the upgrade to {wanted} begins when EtcdBackup {name} has succeeded"),
        )),
        Some(backup) => Some(Step::new(
            Work::Blocked,
            Reason::UpgradeHalted,
            format!(
                "the upgrade to {wanted} waits for a backup, which fails: {} (EtcdBackup {name}). {how}",
                backup.trouble
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::three;
    use crate::cluster::world::UpgradeBackup;

    fn intent(version: &str) -> Intent {
        let cluster = serde_json::json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "spec": {"size": 3, "version": version, "backup": {"s3": {"path": "b/k"}}}});
        let cluster: crate::api::EtcdCluster = serde_json::from_value(cluster).unwrap();
        Intent::of(&cluster, false).unwrap()
    }

    fn version(text: &str) -> EtcdVersion {
        text.parse().unwrap()
    }

    #[test]
    fn a_minor_version_waits_for_its_own_backup_and_a_patch_does_not() {
        let running = |record: &mut Record| {
            record.current = Some(version("3.5.35"));
            record.target = Some(version("3.5.35"));
        };
        let mut record = Record::default();
        running(&mut record);
        let mut world = World {
            fresh_names: vec!["c-abcdefghij".into()],
            ..World::default()
        };
        // a patch goes at once
        assert_eq!(
            hold(&intent("3.5.36"), &mut record, &world, version("3.5.36")),
            version("3.5.36")
        );
        assert_eq!(record.upgrade_backup, None);
        // a minor version is held, under a name that is recorded
        let up = intent("3.6.16");
        assert_eq!(hold(&up, &mut record, &world, version("3.6.16")), version("3.5.35"));
        assert_eq!(record.upgrade_backup.as_deref(), Some("c-before-3.6.16-abcde"));
        world.upgrade_backup = Some(UpgradeBackup {
            succeeded: false,
            trouble: "the store is down".into(),
        });
        assert_eq!(hold(&up, &mut record, &world, version("3.6.16")), version("3.5.35"));
        world.upgrade_backup.as_mut().unwrap().succeeded = true;
        assert_eq!(hold(&up, &mut record, &world, version("3.6.16")), version("3.6.16"));
        // begun, it is not held again, even for another patch of it
        record.target = Some(version("3.6.16"));
        world.upgrade_backup = None;
        assert_eq!(
            hold(&intent("3.6.17"), &mut record, &world, version("3.6.17")),
            version("3.6.17")
        );
        // taken back, the record goes, so that the next upgrade takes a new one
        running(&mut record);
        assert_eq!(
            hold(&intent("3.5.35"), &mut record, &world, version("3.5.35")),
            version("3.5.35")
        );
        assert_eq!(record.upgrade_backup, None);
        // without a store, or told not to, nothing is held
        let mut skips = intent("3.6.16");
        skips.backup_first = false;
        assert_eq!(hold(&skips, &mut record, &world, version("3.6.16")), version("3.6.16"));
    }

    #[test]
    fn the_backup_of_the_spec_is_kept_and_taken_away() {
        use crate::cluster::Uid;
        let hash = || Some("wanted".to_owned());
        let ours = |hash: &str| KeptBackup::Ours {
            uid: Uid("b".into()),
            hash: hash.into(),
        };
        for (wanted, there, reason, effects) in [
            (
                hash(),
                KeptBackup::None,
                Reason::AsExpected,
                &["apply the EtcdBackup of spec.backup"][..],
            ),
            (
                hash(),
                ours("old"),
                Reason::AsExpected,
                &["apply the EtcdBackup of spec.backup"],
            ),
            (hash(), ours("wanted"), Reason::AsExpected, &[]),
            (
                None,
                ours("old"),
                Reason::AsExpected,
                &["delete the EtcdBackup of spec.backup (uid b)"],
            ),
            (hash(), KeptBackup::Theirs, Reason::BackupNameTaken, &[]),
        ] {
            let given = three().spec(|intent| intent.backup = wanted);
            given.world(|world| world.kept_backup = there).then(reason, effects);
        }
    }

    #[test]
    fn an_upgrade_begins_with_a_backup() {
        let given = three().spec(|intent| (intent.version, intent.backup_first) = (version("3.6.16"), true));
        let plan = given.then(
            Reason::BackupFirst,
            &["create EtcdBackup c-before-3.6.16-new before the upgrade to 3.6.16"],
        );
        assert_eq!(plan.record.target, Some(version("3.5.35")));
    }
}
