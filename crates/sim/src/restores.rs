//! Backups and EtcdRestores: the content of a backup, how an EtcdRestore is proven and ends, and what a restore does to
//! the user's cluster.

use std::collections::BTreeSet;
use std::rc::Rc;

use stateward_etcd::api::etcd_restore::RestoreSource;
use stateward_etcd::cluster::{
    BackupPoint, ClusterId, Intent, Launch, Listed, MemberId, MemberName, Record, Recovery, RequestState,
    RestoreRequest, RestoreStep, Restoring, Uid, World,
};

use crate::etcd::{hash, peer_url};
use crate::kube::uid;
use crate::queue::{Event, Id, Ms, stamp};
use crate::raft::{Change, Conf, Data, Entry, What};
use crate::rng::Rng;
use crate::rules::name;
use crate::sim::Sim;

/// An EtcdRestore.
#[derive(Clone)]
pub(crate) struct RestoreObject {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) recovery: bool,
    pub(crate) state: RequestState,
    backup: usize,
    /// Its backup can be fetched and is intact.
    good: bool,
    proves_at: Ms,
    /// Its cluster serves: the EtcdRestore is not read any more.
    complete: bool,
}

/// The writes that a backup contains, and when it was taken.
#[derive(Clone, Default)]
pub(crate) struct Backup {
    writes: BTreeSet<u32>,
    taken: Ms,
    /// The cluster's version (minor): an older etcd cannot read it.
    pub(crate) minor: u64,
    /// The etcd cluster and the EtcdCluster that it was taken from.
    cluster: Option<ClusterId>,
    owner: Id,
}

fn backup_of(source: &RestoreSource) -> usize {
    usize::try_from(source.revision).unwrap_or(0)
}

impl Sim<'_> {
    fn backup_source(&self, backup: usize) -> RestoreSource {
        RestoreSource {
            location: format!("backup-{backup}"),
            revision: i64::try_from(backup).unwrap_or(0),
            cluster_version: format!("3.{}.0", self.backups[backup].minor),
            ..RestoreSource::default()
        }
    }

    /// EtcdRestore control reports that a backup is too new for the version in the spec.
    fn is_too_new(&self, restore: &RestoreObject, intent: &Intent) -> bool {
        matches!(restore.state, RequestState::Proven(_)) && self.backups[restore.backup].minor > intent.version.minor()
    }

    /// The lowest version with which a member can read its backup.
    pub(crate) fn backup_minor(&self, source: &RestoreSource) -> u64 {
        self.backups.get(backup_of(source)).map_or(0, |backup| backup.minor)
    }

    pub(crate) fn take_backup(&mut self) -> usize {
        self.backups.push(Backup {
            writes: self.truth.acknowledged.clone(),
            taken: self.now,
            minor: self.truth.floor,
            cluster: self.truth.bootstrapped.last().copied().map(ClusterId),
            owner: self.truth.owner,
        });
        let (number, count) = (self.backups.len() - 1, self.truth.acknowledged.len());
        self.log(|| format!("user: takes backup {number} with {count} writes"));
        number
    }

    /// The user requests a restore; sometimes the backup is broken.
    pub(crate) fn user_requests_restore(&mut self, backup: usize, good: bool) -> Id {
        let number = self.kube.new_id();
        self.make_restore(number, format!("demo-{number}"), backup, good, false);
        number
    }

    fn make_restore(&mut self, id: Id, name: String, backup: usize, good: bool, recovery: bool) {
        self.log(|| {
            format!(
                "EtcdRestore {name} of backup {backup} is created{}",
                if good { "" } else { "; it is broken" }
            )
        });
        let proves_at = self.now + self.rng.between(0, 10_000);
        self.kube.restores_mut().push(Rc::new(RestoreObject {
            id,
            name,
            recovery,
            state: RequestState::Fetching,
            backup,
            good,
            proves_at,
            complete: false,
        }));
    }

    /// Creates an EtcdRestore, as the operator does for a recovery.
    pub(crate) fn request_restore(&mut self, name: &str) -> Result<(), String> {
        if self.kube.now.restores.iter().any(|restore| restore.name == name) {
            return Err("409: already exists".into());
        }
        let backup = self.backups.len().checked_sub(1).ok_or("no backup")?;
        let id = self.kube.new_id();
        let good = self.calm || self.rng.per_mille(850);
        self.make_restore(id, name.to_owned(), backup, good, true);
        Ok(())
    }

    pub(crate) fn delete_restore(&mut self, id: Id) {
        self.log(|| format!("user: deletes EtcdRestore {id}"));
        self.kube.restores_mut().retain(|restore| restore.id != id);
    }

    /// What the user does about backups and restores.
    pub(crate) fn draw_restore(&mut self) {
        let open: Vec<Id> = self.kube.now.restores.iter().map(|restore| restore.id).collect();
        match self.rng.between(0, 5) {
            0 | 1 => drop(self.take_backup()),
            2 if !open.is_empty() => {
                let id = self.rng.pick(&open).copied().unwrap_or_default();
                self.delete_restore(id);
            }
            _ => {
                if self.backups.is_empty() {
                    self.take_backup();
                }
                let backup = self.rng.index(self.backups.len());
                let good = self.rng.per_mille(850);
                self.user_requests_restore(backup, good);
            }
        }
    }

    /// Some users apply an EtcdRestore together with their cluster; its backup comes from an earlier cluster and has no
    /// writes here.
    pub(crate) fn draw_first_restore(&mut self, rng: &mut Rng) {
        if self.profile.edits && rng.per_mille(60) {
            let backup = self.take_backup();
            self.user_requests_restore(backup, true);
        }
    }

    /// EtcdRestore control: proves backups before anything changes, and follows the cluster.
    pub(crate) fn reconcile_restores(&mut self) {
        let record = self.present().map(|(_, record)| record.clone()).unwrap_or_default();
        let busy = self.kube.now.restores.iter().any(|restore| !restore.complete);
        if !busy || (!self.calm && self.rng.per_mille(300)) {
            return;
        }
        let (now, calm) = (self.now, self.calm);
        let mut proven = Vec::new();
        let mut lines = Vec::new();
        let mut restores = self.kube.now.restores.as_ref().clone();
        for restore in restores.iter_mut().filter(|restore| !restore.complete) {
            let followed = record.restore.as_ref().filter(|known| known.uid == uid(restore.id));
            let taken_up = followed.is_some();
            if followed.is_some_and(|known| known.step == RestoreStep::Done) {
                Rc::make_mut(restore).complete = true;
                lines.push(format!("EtcdRestore {} is complete", restore.name));
            } else if restore.state == RequestState::Fetching && restore.proves_at <= now {
                let state = if restore.good {
                    proven.push(restore.id);
                    RequestState::Proven(Box::new(self.backup_source(restore.backup)))
                } else {
                    RequestState::Failed("the backup is corrupt".into())
                };
                lines.push(format!("EtcdRestore {}: {state:?}", restore.name));
                Rc::make_mut(restore).state = state;
            } else if restore.recovery && !taken_up && record.asked.as_ref() != Some(&restore.name) && calm {
                Rc::make_mut(restore).complete = true;
                lines.push(format!("EtcdRestore {} is not needed any more", restore.name));
            }
        }
        if lines.is_empty() {
            return;
        }
        for line in lines {
            self.log(|| line);
        }
        self.proven.extend(proven);
        *self.kube.restores_mut() = restores;
    }

    /// The user deletes failed EtcdRestores, so that nothing waits for them.
    pub(crate) fn clear_failed_restores(&mut self) {
        let desired = self.present().map(|(intent, _)| intent.version.minor());
        let too_new = |restore: &RestoreObject| desired.is_some_and(|minor| self.backups[restore.backup].minor > minor);
        let failed = |restore: &&Rc<RestoreObject>| {
            matches!(restore.state, RequestState::Failed(_)) || !restore.good || too_new(restore)
        };
        let gone: Vec<Id> = self
            .kube
            .now
            .restores
            .iter()
            .filter(failed)
            .map(|restore| restore.id)
            .collect();
        if !gone.is_empty() {
            self.log(|| "user: deletes the EtcdRestores that failed".into());
            self.kube.restores_mut().retain(|restore| !gone.contains(&restore.id));
        }
    }

    /// The EtcdBackup that tells of it: the one of an earlier cluster of the name is not that of this one.
    fn name_of_backup(&self, backup: &Backup) -> String {
        let is_own = backup.owner == self.truth.owner;
        (if is_own { "daily" } else { "nightly" }).to_owned()
    }

    /// What an operator observes of them.
    pub(crate) fn show_restores(&self, intent: &Intent, restores: &[Rc<RestoreObject>], world: &mut World) {
        world.restores = restores
            .iter()
            .filter(|restore| !restore.complete)
            .map(|restore| RestoreRequest {
                uid: uid(restore.id),
                name: restore.name.clone(),
                recovery: restore.recovery,
                backup: self
                    .backups
                    .get(restore.backup)
                    .map(|backup| self.name_of_backup(backup)),
                state: if self.is_too_new(restore, intent) {
                    RequestState::Failed("the backup is of a newer etcd".into())
                } else {
                    restore.state.clone()
                },
            })
            .collect();
        let point = |backup: &Backup| BackupPoint {
            name: self.name_of_backup(backup),
            revision: 0,
            taken: stamp(backup.taken),
            place: stateward_etcd::api::agent::Place::default(),
            location: String::new(),
            sha256: String::new(),
            cluster: backup.cluster,
        };
        world.backups = self.backups.last().map(point).into_iter().collect();
    }

    /// An EtcdRestore that still applies.
    pub(crate) fn restore_waits(&self) -> bool {
        let restores = self.kube.now.restores.iter();
        restores
            .filter(|restore| !restore.recovery)
            .any(|restore| !restore.complete)
    }

    /// The names of the EtcdRestores for which a new cluster must wait before its bootstrap.
    pub(crate) fn waiting_restores(&self) -> Vec<String> {
        let restores = self.kube.now.restores.iter();
        let waiting = restores.filter(|restore| !restore.recovery && !restore.complete);
        waiting.map(|restore| restore.name.clone()).collect()
    }

    /// An EtcdRestore that may begin.
    pub(crate) fn restore_of_name(&self, name: &str) -> Option<Uid> {
        let mut restores = self.kube.now.restores.iter();
        restores
            .find(|restore| restore.name == name && !restore.complete)
            .map(|restore| uid(restore.id))
    }

    /// A restore begins only while its EtcdRestore exists.
    fn check_restore_is_asked_for(&mut self, begun: &Restoring) {
        let mut restores = self.kube.now.restores.iter();
        if !restores.any(|restore| uid(restore.id) == begun.uid) {
            self.break_rule(
                name::RESTORE_ASKED,
                format!("{} is deleted and is followed", begun.name),
            );
        }
    }

    /// A cluster is not bootstrapped empty while one of its EtcdRestores waits.
    pub(crate) fn check_nothing_is_awaited(&mut self, owner: Id, launch: &Launch, member: &MemberName) {
        let first = matches!(launch, Launch::Seed { .. } | Launch::Static { .. });
        let has_begun =
            self.kube.now.pods.values().any(|pod| pod.owner == owner) || !self.truth.bootstrapped.is_empty();
        if !first || has_begun || owner != self.truth.owner {
            return;
        }
        if let Some(waiting) = self.waiting_restores().first() {
            self.break_rule(
                name::RESTORE_AWAITED,
                format!("{member} begins empty, and EtcdRestore {waiting} waits"),
            );
        }
    }

    /// Checked before a record is written: a restore begins only from a proven backup, and only once.
    pub(crate) fn check_restore_record(&mut self, intent: &Intent, before: &Record, after: &Record) {
        if let Some(begun) = after.begins_restore(before) {
            self.check_restore_is_asked_for(begun);
        }
        let (Some(new), old) = (&after.restore, &before.restore) else {
            return;
        };
        let known = old.as_ref().is_some_and(|old| old.uid == new.uid);
        if new.step == RestoreStep::Done {
            if !self.truth.restored.insert(new.uid.clone()) && !known {
                self.break_rule(name::RESTORE_ONCE, format!("{} is done twice", new.name));
            }
            return;
        }
        if known {
            if old.as_ref().is_some_and(|old| old.step == RestoreStep::Done) {
                self.break_rule(name::RESTORE_ONCE, format!("{} begins again", new.name));
            }
            return;
        }
        if self.truth.restored.contains(&new.uid) {
            self.break_rule(name::RESTORE_ONCE, format!("{} begins again", new.name));
        }
        if !self.proven.iter().any(|id| uid(*id) == new.uid) {
            self.break_rule(
                name::RESTORE_PROVEN,
                format!("{} is followed, and its backup was never proven", new.name),
            );
        }
        if new.recovery {
            if !matches!(intent.recovery, Recovery::FromBackup(_)) {
                self.break_rule(
                    name::EVIDENCE,
                    "a backup is to become the cluster without the user's consent",
                );
            }
            self.check_majority_cannot_come_back();
            self.check_delay(intent);
            self.check_backup_is_ours(intent, new);
        }
    }

    /// A backup of an earlier cluster of the same name is used only where the user names it.
    fn check_backup_is_ours(&mut self, intent: &Intent, restoring: &stateward_etcd::cluster::Restoring) {
        let backup = self.backups.get(backup_of(&restoring.source));
        if intent.recovery_backup.is_none() && backup.is_some_and(|backup| backup.owner != self.truth.owner) {
            self.break_rule(
                name::OWN_BACKUP,
                format!("{} restores the data of another cluster", restoring.name),
            );
        }
    }

    /// The init container of a restored first member: creates the data once, or fails and is tried again.
    pub(crate) fn make_data_from_backup(&mut self, pod: Id, place: Id) -> bool {
        let Some(pod) = self.known_pod(pod) else {
            return false;
        };
        let Launch::Restore { token, source } = &pod.launch else {
            return true;
        };
        let empty = self.volumes.get(&place).is_some_and(|volume| volume.data.is_none());
        // After the first start it runs again only when the kubelet creates a new pod sandbox.
        if !empty || (pod.shown.ever_ran && self.rng.per_mille(700)) {
            return true;
        }
        if !self.calm && self.rng.per_mille(200) {
            return false;
        }
        let own = MemberId(hash(&[&peer_url(&pod.name), token]) >> 16);
        let listed = Listed {
            id: own,
            name: Some(pod.name.clone()),
            peer_urls: vec![peer_url(&pod.name)],
            learner: false,
        };
        let cluster = hash(&[&own.to_string()]) >> 16;
        let writes = self.backups[backup_of(source)].writes.clone();
        self.changes.push(Change::Add(listed.clone()));
        self.serial += 1;
        let change = Entry {
            term: 1,
            serial: self.serial,
            what: What::Change(self.changes.len() - 1),
        };
        let mut log: Vec<Entry> = writes
            .into_iter()
            .map(|serial| Entry {
                term: 1,
                serial,
                what: What::Write,
            })
            .collect();
        log.push(change);
        let conf: Conf = vec![listed];
        let member = pod.name.clone();
        self.log(|| {
            format!(
                "{member}: data is restored from {} for cluster {}",
                source.location,
                ClusterId(cluster)
            )
        });
        if let Some(volume) = self.volumes.get_mut(&place) {
            volume.data = Some(Data {
                cluster,
                lineage: 0,
                id: own,
                term: 1,
                committed: log.len(),
                log,
                conf: Rc::new(conf),
                content: 0,
            });
        }
        self.truth.made.insert(cluster);
        true
    }

    /// A member starts with data that was just restored from a backup: from here on this is the user's cluster.
    pub(crate) fn restored_member_starts(&mut self, process: Id, source: &RestoreSource, token: &str) {
        let Some((state, data)) = self.processes.get(&process).zip(self.data_of(process)) else {
            return;
        };
        let (owner, member, cluster, id) = (state.owner, state.name.clone(), data.cluster, data.id);
        let conf = data.conf.clone();
        let has: BTreeSet<u32> = data.log.iter().map(|entry| entry.serial).collect();
        if owner != self.truth.owner || !self.truth.made.remove(&cluster) {
            return;
        }
        let recorded = self.present().is_some_and(|(_, record)| {
            let restore = record.restore.as_ref();
            restore.is_some_and(|restore| restore.seed == member && restore.token == token)
        });
        if !recorded {
            // A pod of a restore that another restore superseded: it is being removed.
            let leaves = self.kube.now.pods.get(&member).is_none_or(|pod| pod.shown.terminating);
            if !leaves && self.calm {
                self.break_rule(
                    name::ONE_BOOTSTRAP,
                    format!("{member} starts from a backup that no record names"),
                );
            }
            return;
        }
        let writes = self.backups[backup_of(source)].writes.clone();
        let asked_for = self.backup_asked_for().unwrap_or_else(|| backup_of(source));
        if !self.backups[asked_for].writes.is_subset(&has) {
            self.break_rule(name::RESTORE_WHOLE, format!("{member} lacks writes of the backup"));
        }
        let recovers = self.present().is_some_and(|(_, record)| {
            let restore = record.restore.as_ref();
            restore.is_some_and(|restore| restore.recovery)
        });
        if recovers {
            self.check_no_other_member_runs(process);
        }
        let old_one_runs = self.processes.iter().any(|(id, other)| {
            other.owner == owner
                && !other.orphan
                && self.nodes[other.node].obeys()
                && self.data_of(*id).is_some_and(|data| data.cluster != cluster)
                && self.kube.pod(*id).is_some_and(|pod| !pod.shown.terminating)
        });
        if old_one_runs {
            self.break_rule(name::RESTORE_FENCED, "old members run while the new cluster starts");
        }
        let replaced: Vec<MemberName> = self.truth.conf.iter().filter_map(|line| line.name.clone()).collect();
        self.log(|| {
            format!(
                "etcd: {member} is the cluster {} from {}",
                ClusterId(cluster),
                source.location
            )
        });
        self.truth
            .replaced
            .extend(replaced.into_iter().filter(|name| *name != member));
        let line = self.data_of(process).map(Data::line);
        if !recovers {
            // The user's explicit request ends the old history, wherever parts of it remain.
            let old = self.lines().into_iter().filter(|old| Some(*old) != line);
            self.truth.dismissed.extend(old);
        }
        self.truth.line = line;
        self.truth.conf = conf;
        self.truth.acknowledged = writes;
        self.truth.majority_lost = false;
        self.truth.consented = false;
        self.truth.bootstrapped.insert(cluster);
        self.truth.bootstrap_members.insert(id);
    }

    /// The backup of the EtcdRestore that the record follows, while that object exists.
    fn backup_asked_for(&self) -> Option<usize> {
        let followed = self.present()?.1.restore.as_ref()?.uid.clone();
        let mut restores = self.kube.now.restores.iter();
        Some(restores.find(|restore| uid(restore.id) == followed)?.backup)
    }

    /// No member of the old cluster starts again after the new one has begun.
    pub(crate) fn check_not_replaced(&mut self, owner: Id, member: &MemberName) {
        if owner == self.truth.owner && self.truth.replaced.contains(member) {
            self.break_rule(
                name::RESTORE_FENCED,
                format!("{member} of the old cluster is started again"),
            );
        }
    }

    pub(crate) fn retry_start(&mut self, pod: Id) {
        let pause = self.rng.between(500, 5000);
        self.queue.at(self.now + pause, Event::Start(pod));
    }
}
