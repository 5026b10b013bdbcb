//! The store of an EtcdBackup: files by name, how each was proven, and what agents do to them. It follows the contract
//! of the real agent (`stateward_etcd_driver::agent`) and uses its retention (`stateward_backup::retention`); the planner's task for an
//! agent decides whether that is safe.

use std::collections::BTreeMap;

use stateward_backup::names::Snapshot;
use stateward_backup::retention::{Keep, Known, Taken, to_delete};
use stateward_etcd::api::agent::{BackupTask, DeleteTask, ProveTask, Retention};
use stateward_etcd::api::etcd_backup::{BackupRecord, Verify};

use super::rules::name;
use super::time;

/// What was at the path of a one-shot backup before.
const BEFORE: &str = "before";

/// A file.
#[derive(Clone, Debug, PartialEq)]
struct File {
    /// When it was begun.
    begun: i64,
    /// Its content, as the name of the pod that wrote it.
    content: String,
    /// It was restored, and not only read back.
    restored: bool,
    /// The status has reported it as proven.
    reported: bool,
    /// Another object wrote it.
    of_neighbour: bool,
}

/// The name of a broken rule, and how it was broken.
pub(super) type Broken = Option<(&'static str, String)>;

/// All files, by location.
pub(super) struct Store {
    files: BTreeMap<String, File>,
    /// The proof that was asked for when the pod was planned that works now.
    pub(super) asked: Verify,
}

/// The path of the object. Periodic backups begin with it.
const PATH: &str = "b/k";
const PERIODIC: &str = "b/k_";

impl Store {
    /// A good backup is at the path of one-shots before anything begins.
    pub(super) fn new() -> Self {
        let before = File {
            begun: -1,
            content: BEFORE.into(),
            restored: false,
            reported: false,
            of_neighbour: false,
        };
        Self {
            files: [(PATH.to_owned(), before)].into(),
            asked: Verify::Check,
        }
    }

    /// The status was written.
    pub(super) fn reported(&mut self, records: &[BackupRecord]) {
        for record in records.iter().filter(|record| record.verified.is_some()) {
            if let Some(file) = self.files.get_mut(&record.location) {
                file.reported = true;
            }
        }
    }

    /// Another object writes its own periodic backup to the same path.
    pub(super) fn neighbour_writes(&mut self, now: i64) {
        let file = File {
            begun: now,
            content: "neighbour".into(),
            restored: false,
            reported: false,
            of_neighbour: true,
        };
        self.files.insert(format!("b/k_n{now}"), file);
    }

    pub(super) fn neighbour_goes(&mut self) {
        self.files.retain(|_, file| !file.of_neighbour);
    }

    /// Sends the snapshot, or a part of it. `proof`: what is read back is good; `None`: the agent is killed before
    /// that. Returns its final and its temporary location, what retention deleted, and which rule that broke.
    pub(super) fn back_up(
        &mut self,
        task: &BackupTask,
        (now, content): (i64, &str),
        proof: Option<bool>,
    ) -> (BackupRecord, Vec<String>, Broken) {
        let location = match task.periodic {
            true => format!("b/k_{now}"),
            false => "b/k".to_owned(),
        };
        let elsewhere = match task.periodic {
            true => String::new(),
            false => format!("b/k.unproven-{}", task.attempt),
        };
        let sent_to = if elsewhere.is_empty() { &location } else { &elsewhere };
        let file = File {
            begun: now,
            content: content.to_owned(),
            restored: false,
            reported: false,
            of_neighbour: false,
        };
        let mut record = BackupRecord {
            location: location.clone(),
            ..BackupRecord::default()
        };
        match proof {
            None => {
                self.files.insert(sent_to.clone(), file);
                return (record, Vec::new(), None);
            }
            Some(false) => return (record, Vec::new(), None), // what was sent is taken back
            Some(true) => {}
        }
        self.files.insert(sent_to.clone(), file);
        if task.periodic {
            let taken = (location.as_str(), !task.prove_later);
            let (deleted, broken) = self.retain(&task.retention, taken, now);
            return (record, deleted, broken);
        }
        let ours = format!(
            "b/k.unproven-{}-",
            task.attempt.rsplit_once('-').map_or("", |(of, _)| of)
        );
        let swept: Vec<String> = self
            .files
            .keys()
            .filter(|key| key.starts_with(&ours) && **key != elsewhere)
            .cloned()
            .collect();
        for key in &swept {
            self.files.remove(key);
        }
        let mut broken = None;
        if task.prove_later {
            record.unproven_at = elsewhere;
        } else {
            broken = self.publish(&elsewhere, &location, false);
        }
        (record, swept, broken)
    }

    /// The proof by restoring, when it succeeds.
    pub(super) fn prove(&mut self, task: &ProveTask, now: i64) -> (Vec<String>, Broken) {
        let record = &task.record;
        if record.unproven_at.is_empty() {
            if let Some(file) = self.files.get_mut(&record.location) {
                file.restored = true;
            }
            return self.retain(&task.retention, (&record.location, true), now);
        }
        let broken = self.publish(&record.unproven_at, &record.location, true);
        (Vec::new(), broken)
    }

    fn publish(&mut self, from: &str, to: &str, by_restoring: bool) -> Broken {
        let mut file = self.files.remove(from)?;
        file.restored = by_restoring;
        let what = format!("{to} becomes {}, which was only read back", file.content);
        self.files.insert(to.to_owned(), file);
        (self.asked == Verify::Restore && !by_restoring).then_some((name::IN_PLACE, what))
    }

    /// Applies retention as the agent does.
    fn retain(&mut self, retention: &Retention, (taken, is_proven): (&str, bool), now: i64) -> (Vec<String>, Broken) {
        let periodic = self.files.iter().filter(|(key, _)| key.starts_with(PERIODIC));
        let found: Vec<Snapshot> = periodic
            .map(|(key, file)| Snapshot {
                time: time(file.begun),
                revision: file.begun,
                key: key.clone(),
            })
            .collect();
        let known = Known {
            proven: retention.proven.iter().cloned().collect(),
            unproven: retention.unproven.iter().cloned().collect(),
        };
        let keep = Keep {
            count: retention.max_backups,
            seconds: retention.max_age_seconds,
        };
        let just = if is_proven {
            Taken::Proven(taken)
        } else {
            Taken::Unproven(taken)
        };
        let goes = to_delete(&found, &known, just, keep, time(now)).into_iter();
        let goes: Vec<String> = goes.map(|snapshot| snapshot.key.clone()).collect();
        let taken = Some(taken).filter(|_| is_proven);
        let before = self.proven_as_asked(taken);
        let mut broken = None;
        for key in &goes {
            let gone = self.files.remove(key);
            if gone.is_some_and(|file| file.of_neighbour) {
                broken = Some((name::NEIGHBOUR, format!("{key} is deleted at {now}")));
            }
        }
        let most = usize::try_from(retention.max_backups.unwrap_or(i64::MAX)).unwrap_or(usize::MAX);
        let left = self.proven_as_asked(taken);
        if broken.is_none() && left < before.min(most) {
            let what = format!(
                "of {before} that are proven as asked ({:?}) {left} remain, {most} are to be kept",
                self.asked
            );
            broken = Some((name::PROVEN_STAY, what));
        }
        (goes, broken)
    }

    /// Deletes the files of an object that is being deleted.
    pub(super) fn delete(&mut self, task: &DeleteTask) -> Broken {
        let mut broken = None;
        let all = |key: &str| task.all_of_path && key.starts_with(PERIODIC);
        let ours = |key: &str| task.locations.iter().any(|location| location == key) || all(key);
        let goes: Vec<String> = self.files.keys().filter(|key| ours(key)).cloned().collect();
        for key in goes {
            match self.files.remove(&key) {
                Some(file) if file.of_neighbour => broken = Some((name::NEIGHBOUR, format!("{key} is deleted"))),
                Some(file) if file.content == BEFORE => broken = Some((name::IN_PLACE, format!("{key} is deleted"))),
                _ => {}
            }
        }
        broken
    }

    /// Periodic backups that are known to be proven, and the one that just was, in the way that was asked for.
    fn proven_as_asked(&self, taken: Option<&str>) -> usize {
        let periodic = self.files.iter().filter(|(key, _)| key.starts_with(PERIODIC));
        let known = periodic.filter(|(key, file)| !file.of_neighbour && (file.reported || Some(key.as_str()) == taken));
        known
            .filter(|(_, file)| file.restored || self.asked == Verify::Check)
            .count()
    }

    /// How many periodic files there are, and how many that one-shot attempts left.
    pub(super) fn counts(&self) -> (usize, usize) {
        let ours = self.files.iter().filter(|(_, file)| !file.of_neighbour);
        let (periodic, others): (Vec<_>, Vec<_>) = ours.partition(|(key, _)| key.starts_with(PERIODIC));
        (
            periodic.len(),
            others.iter().filter(|(key, _)| key.as_str() != PATH).count(),
        )
    }
}
