//! What an action does to Kubernetes and to servers, as the driver's requests would. A request can be lost, its answer too, and
//! one that consists of several statements can end between two of them.

use std::collections::BTreeMap;
use std::rc::Rc;

use stateward_core::Uid;
use stateward_core::guard::Precondition;

use super::kube::{SetObject, uid};
use super::rules::Moment;
use super::server::Data;
use super::state::{NODES, Sim};
use super::transactions::{Bits, Writer};
use crate::action::{Action, Stop};
use crate::api::MySQLVersion;
use crate::world::{Object, Ordinal, Role, StatefulSet, UpgradeBackup};

/// What the driver makes objects from.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) objects: BTreeMap<Object, String>,
    pub(super) template: String,
    pub(super) metadata: String,
    pub(super) version: MySQLVersion,
    pub(super) setting: u64,
}

/// The variable by which configuration is followed, and its default.
pub(super) const VARIABLE: &str = "max_connections";
pub(super) const DEFAULT_SETTING: u64 = 151;

type Done = Result<(), String>;

impl Sim<'_> {
    /// The server that an operator reaches by a member's name.
    fn server(&self, operator: usize, member: Ordinal) -> Result<u32, String> {
        let boot = self.by_host(member).ok_or("no route to host")?;
        let process = self.process(boot).ok_or("no route to host")?;
        if !process.replies(self.now) || !self.linked(NODES + operator, process.node) {
            return Err(format!("{member} does not reply"));
        }
        Ok(boot)
    }

    /// A connection ends before the next statement.
    fn interrupted(&mut self) -> bool {
        !self.calm && self.rng.per_mille(self.profile.errors)
    }

    pub(super) fn execute(
        &mut self,
        operator: usize,
        action: &Action,
        precondition: &Precondition,
        wanted: &Wanted,
    ) -> Done {
        let done = self.request(operator, action, precondition, wanted);
        if done.is_ok() {
            *self
                .executed
                .entry(stateward_core::kind::Action::name(action))
                .or_default() += 1;
        }
        self.changed = true;
        done
    }

    fn request(&mut self, operator: usize, action: &Action, precondition: &Precondition, wanted: &Wanted) -> Done {
        match action {
            Action::EnsureSecrets => self.kube.secrets.complete = true,
            Action::IssueCertificates => self.issue_certificates(),
            Action::Apply(object) => self.apply_object(*object, wanted),
            Action::ApplySet { replicas } => self.apply_set(*replicas, wanted),
            Action::ScaleIn { replicas, .. } => return self.scale_in(*replicas, precondition),
            Action::Label {
                member, role, reads, ..
            } => return self.label(*member, precondition, *role, *reads),
            Action::DeletePod { member, uid, how } => return self.delete_pod(*member, uid, precondition, *how),
            Action::DeleteClaim { member, uid, .. } => return self.delete_claim(*member, uid, precondition),
            Action::GrowClaim { member, bytes, .. } => return self.grow_claim(*member, precondition, *bytes),
            Action::OwnClaim { member, owned, .. } => {
                let claim = self.kube.claims_mut().get_mut(member).ok_or("404: no claim")?;
                same(precondition, &claim.shown.uid)?;
                claim.owned = *owned;
            }
            Action::Found { member, .. } => return self.found(operator, *member),
            Action::Clone {
                member, donor, discard, ..
            } => return self.clone_into(operator, *member, *donor, discard),
            Action::Replicate {
                member,
                source,
                acknowledge,
                ..
            } => return self.replicate(operator, *member, *source, *acknowledge),
            Action::StopReceiver { member, .. } => return self.stop_receiver(operator, *member),
            Action::Expel { primary, member, .. } => return self.expel(operator, *primary, *member),
            Action::Readmit { primary, member, .. } => {
                let boot = self.server(operator, *primary)?;
                let data = self.data_mut(boot).ok_or("gone")?;
                data.locked.remove(member);
            }
            Action::SetAcks { member, acks, .. } => return self.set_acks(operator, *member, *acks),
            Action::Nudge { member, .. } => return self.nudge(operator, *member),
            Action::Open { member, acks, .. } => return self.open(operator, *member, *acks),
            Action::Close { member, .. } => return self.close(operator, *member),
            Action::EndProcess { member, .. } => return self.end(*member, precondition),
            Action::SetVariables {
                member, values, hash, ..
            } => return self.set_variables(operator, *member, values, hash),
            Action::SaveErrant { member, gtids, .. } => {
                let boot = self.server(operator, *member)?;
                let executed = self.data(boot).map(|data| data.executed).unwrap_or_default();
                let saved = self.transactions.named(gtids, &executed);
                let data = self.data_mut(boot).ok_or("gone")?;
                data.saved.push(saved);
            }
            Action::RotatePasswords { primary, rotation, .. } => {
                self.server(operator, *primary)?;
                self.kube.secrets.rotation = rotation.clone();
                self.old_passwords = true;
            }
            Action::DiscardOldPasswords { primary, .. } => {
                self.server(operator, *primary)?;
                self.old_passwords = false;
            }
            Action::ReloadCertificates { member, .. } => {
                let (boot, certificate) = (self.server(operator, *member)?, self.kube.certificate);
                let process = self.process_mut(boot).ok_or("gone")?;
                process.certificate = certificate;
            }
            Action::PurgeBinlogs { member, keep, .. } => return self.purge(operator, *member, keep),
            Action::TakeBackup { name } => {
                let backup = UpgradeBackup {
                    name: name.clone(),
                    proven: false,
                    problem: None,
                };
                self.kube.backup.get_or_insert(backup);
            }
            Action::Tell(_) => {}
        }
        Ok(())
    }

    fn issue_certificates(&mut self) {
        self.kube.certificate += 1;
        let tls = &mut self.kube.tls;
        tls.issued = true;
        tls.due = false;
        // Certificates have no fractions of seconds.
        tls.not_after = Some(super::kube::stamp((self.now / 1000 + 1_000_000) * 1000));
        tls.fingerprint = Some(format!("c{}", self.kube.certificate));
    }

    fn apply_object(&mut self, object: Object, wanted: &Wanted) {
        let hash = wanted.objects.get(&object).cloned().unwrap_or_default();
        Rc::make_mut(&mut self.kube.objects).insert(object, hash);
        if object == Object::Config {
            self.kube.setting = wanted.setting;
        }
    }

    fn apply_set(&mut self, replicas: u32, wanted: &Wanted) {
        let old = self.kube.set.as_ref().map(|set| set.shown.uid.clone());
        let uid = match old {
            Some(uid) => uid,
            None => uid('s', self.new_id()),
        };
        let before = self.kube.set.as_ref().map_or(0, |set| set.shown.replicas);
        self.kube.set = Some(Rc::new(SetObject {
            shown: StatefulSet {
                uid,
                replicas,
                template: wanted.template.clone(),
                metadata: wanted.metadata.clone(),
                ours: true,
            },
            version: wanted.version,
        }));
        if replicas < before {
            self.judge(&Moment::ScaledIn { replicas, before });
        }
    }

    fn scale_in(&mut self, replicas: u32, precondition: &Precondition) -> Done {
        let set = self.kube.set.as_mut().ok_or("404: no StatefulSet")?;
        same(precondition, &set.shown.uid)?;
        let before = set.shown.replicas;
        Rc::make_mut(set).shown.replicas = replicas;
        self.judge(&Moment::ScaledIn { replicas, before });
        Ok(())
    }

    fn label(&mut self, member: Ordinal, precondition: &Precondition, role: Option<Role>, reads: bool) -> Done {
        let pod = self.kube.pods.get(&member).ok_or("404: no pod")?;
        same(precondition, &pod.shown.facts.uid)?;
        if let Some(pod) = self.kube.pods_mut().get_mut(&member) {
            pod.shown.role = role;
            pod.shown.reads = reads;
        }
        self.judge(&Moment::Labelled { member, role, reads });
        Ok(())
    }

    fn delete_pod(&mut self, member: Ordinal, meant: &Uid, precondition: &Precondition, how: Stop) -> Done {
        let pod = self.kube.pods.get(&member).ok_or("404: no pod")?;
        same(precondition, &pod.shown.facts.uid)?;
        self.judge(&Moment::PodDeleted { member, meant, how });
        match how {
            Stop::Restart => self.terminate_pod(member),
            Stop::Force => {
                // The object goes. What runs on the node goes on.
                self.kube.pods_mut().remove(&member);
            }
        }
        Ok(())
    }

    fn delete_claim(&mut self, member: Ordinal, meant: &Uid, precondition: &Precondition) -> Done {
        let claim = self.kube.claims.get(&member).ok_or("404: no claim")?;
        same(precondition, &claim.shown.uid)?;
        self.judge(&Moment::ClaimDeleted { member, meant });
        if let Some(claim) = self.kube.claims_mut().get_mut(&member) {
            claim.shown.terminating = true;
        }
        Ok(())
    }

    fn grow_claim(&mut self, member: Ordinal, precondition: &Precondition, bytes: u64) -> Done {
        let claim = self.kube.claims_mut().get_mut(&member).ok_or("404: no claim")?;
        same(precondition, &claim.shown.uid)?;
        claim.shown.requested = bytes;
        let volume = claim.volume;
        if let Some(volume) = self.volumes.get_mut(volume) {
            volume.bytes = bytes;
        }
        Ok(())
    }

    /// Accounts, database, and last the table that says whose data this is.
    fn found(&mut self, operator: usize, member: Ordinal) -> Done {
        let boot = self.server(operator, member)?;
        if self.data(boot).is_some_and(|data| data.cluster.is_some()) {
            return Ok(());
        }
        self.judge(&Moment::Founded { boot });
        for last in [false, true] {
            if self.interrupted() {
                return Err("the connection was lost".into());
            }
            if let Some(tx) = self.write(boot, Writer::Founder, None) {
                self.truth.founded.insert(tx);
            }
            let owner = self.owner();
            let data = self.data_mut(boot).ok_or("gone")?;
            if last {
                data.cluster = Some(owner);
            }
            let uuid = data.uuid;
            self.truth.founder.get_or_insert(uuid);
        }
        Ok(())
    }

    fn clone_into(&mut self, operator: usize, member: Ordinal, donor: Ordinal, discard: &crate::GtidSet) -> Done {
        let boot = self.server(operator, member)?;
        let from = self.by_host(donor).ok_or("no route to the donor")?;
        let (Some(process), Some(there)) = (self.process(boot), self.process(from)) else {
            return Err("gone".into());
        };
        if process.clone.is_some() || there.clone.is_some() {
            return Err("a clone is running".into());
        }
        if from == boot || !there.replies(self.now) || !self.linked(process.node, there.node) {
            return Err("the donor does not reply".into());
        }
        if process.version.series() != there.version.series() {
            return Err("the donor has another version".into());
        }
        self.judge(&Moment::Cloned { member, donor, discard });
        let host = self.host(donor);
        self.begin_clone(boot, from, host);
        Ok(())
    }

    fn replicate(&mut self, operator: usize, member: Ordinal, source: Ordinal, acknowledge: bool) -> Done {
        let boot = self.server(operator, member)?;
        if self.process(boot).is_some_and(|process| process.clone.is_some()) {
            return Err("a clone is running".into());
        }
        self.judge(&Moment::Followed { member, source });
        self.follow(boot, source, acknowledge);
        let released = self.process(boot).is_some_and(|process| !process.waiting.is_empty());
        if released {
            self.judge(&Moment::Released { member });
        }
        Ok(())
    }

    fn stop_receiver(&mut self, operator: usize, member: Ordinal) -> Done {
        let boot = self.server(operator, member)?;
        let interrupted = self.interrupted();
        let process = self.process_mut(boot).ok_or("gone")?;
        if process.clone.is_some() {
            return Err("a clone is running".into());
        }
        process.acknowledges = false;
        if interrupted {
            // The receiver that runs goes on acknowledging.
            return Err("the connection was lost".into());
        }
        process.receiver = None;
        process.applier = true;
        Ok(())
    }

    fn expel(&mut self, operator: usize, primary: Ordinal, member: Ordinal) -> Done {
        let boot = self.server(operator, primary)?;
        let data = self.data_mut(boot).ok_or("gone")?;
        data.locked.insert(member);
        if self.interrupted() {
            // Its dump thread goes on.
            return Err("the connection was lost".into());
        }
        let theirs = |process: &&super::server::Process| {
            let connection = process.receiver.as_ref().and_then(|receiver| receiver.connection);
            process.member == member && connection.is_some_and(|(to, _)| to == boot)
        };
        let replicas: Vec<u32> = self
            .processes
            .iter()
            .filter(theirs)
            .map(|process| process.boot)
            .collect();
        for replica in replicas {
            self.disconnect(replica);
        }
        self.in_flight.retain(|one| !one.is_of(boot, member));
        Ok(())
    }

    fn set_acks(&mut self, operator: usize, member: Ordinal, acks: u32) -> Done {
        let boot = self.server(operator, member)?;
        let process = self.process_mut(boot).ok_or("gone")?;
        let waited = !process.waiting.is_empty() && process.waits;
        process.waits = acks > 0;
        process.acks = acks.max(1);
        if waited && acks == 0 {
            self.judge(&Moment::Released { member });
        }
        self.tick_servers();
        Ok(())
    }

    fn nudge(&mut self, operator: usize, member: Ordinal) -> Done {
        let boot = self.server(operator, member)?;
        if self.process(boot).is_none_or(|process| process.read_only) {
            return Err("--super-read-only".into());
        }
        if !self.transactions.is_exhausted() {
            self.write(boot, Writer::Heartbeat, None);
        }
        Ok(())
    }

    fn open(&mut self, operator: usize, member: Ordinal, acks: u32) -> Done {
        let boot = self.server(operator, member)?;
        let process = self.process_mut(boot).ok_or("gone")?;
        if process.clone.is_some() {
            return Err("a clone is running".into());
        }
        process.receiver = None;
        process.acknowledges = false;
        process.applier = false;
        if self.interrupted() {
            return Err("the connection was lost".into());
        }
        let left = self.data_mut(boot).map(Data::drop_relay).unwrap_or_default();
        if !left.is_empty() {
            self.discarded(member, left);
        }
        if let Some(data) = self.data_mut(boot) {
            data.source = None;
        }
        let process = self.process_mut(boot).ok_or("gone")?;
        process.waits = acks > 0;
        process.acks = acks.max(1);
        if self.interrupted() {
            return Err("the connection was lost".into());
        }
        self.judge(&Moment::Opened { boot, acks });
        let process = self.process_mut(boot).ok_or("gone")?;
        process.read_only = false;
        self.truth.opened = Some(boot);
        self.truth.opened_on = self.process(boot).map(|process| process.volume);
        Ok(())
    }

    fn close(&mut self, operator: usize, member: Ordinal) -> Done {
        let boot = self.server(operator, member)?;
        let process = self.process_mut(boot).ok_or("gone")?;
        process.sessions += 1;
        // Commits that wait for acknowledgements hold the lock that `super_read_only` needs.
        if !process.waiting.is_empty() {
            return Err("not yet: commits wait".into());
        }
        process.read_only = true;
        Ok(())
    }

    fn end(&mut self, member: Ordinal, precondition: &Precondition) -> Done {
        let pod = self.kube.pods.get(&member).ok_or("404: no pod")?;
        same(precondition, &pod.shown.facts.uid)?;
        let node = pod.node.and_then(|node| self.nodes.get(node));
        if !node.is_some_and(|node| node.up && !node.cut) {
            return Err("the kubelet does not reply".into());
        }
        if let Some(boot) = self.by_host(member) {
            self.end_process(boot);
        }
        Ok(())
    }

    fn set_variables(
        &mut self,
        operator: usize,
        member: Ordinal,
        values: &BTreeMap<String, Option<String>>,
        hash: &str,
    ) -> Done {
        let boot = self.server(operator, member)?;
        let process = self.process_mut(boot).ok_or("gone")?;
        if let Some(value) = values.get(VARIABLE) {
            let number = value.as_ref().map(|value| value.parse());
            process.setting = number
                .transpose()
                .map_err(|_| "1232: wrong type")?
                .unwrap_or(DEFAULT_SETTING);
        }
        process.config = Some(hash.to_owned());
        Ok(())
    }

    fn purge(&mut self, operator: usize, member: Ordinal, keep: &crate::GtidSet) -> Done {
        let boot = self.server(operator, member)?;
        let executed = self.data(boot).map(|data| data.executed).unwrap_or_default();
        let kept = self.transactions.named(keep, &executed);
        let purged: Bits = executed.minus(&kept);
        self.judge(&Moment::Purged { member, purged });
        let data = self.data_mut(boot).ok_or("gone")?;
        data.purged = data.purged.or(&purged);
        Ok(())
    }

    pub(super) fn host(&self, member: Ordinal) -> String {
        let cluster = &self.kube.cluster;
        crate::names::host(cluster.name(), cluster.namespace(), member)
    }
}

fn same(precondition: &Precondition, now: &Uid) -> Done {
    match &precondition.uid {
        Some(uid) if uid != now => Err("409: the UID differs".into()),
        Some(_) | None => Ok(()),
    }
}
