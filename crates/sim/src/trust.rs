//! Certificates and CA bundles: the Secrets, kubelets that update mounted certificates late, and etcd, which reads
//! certificates at every handshake and the CA bundle only when it starts.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use stateward_etcd::cluster::guard::{SecretNow, SecretRole};
use stateward_etcd::cluster::{Ca, Trust, World};

use crate::kube::Cluster;
use crate::queue::{Event, Id, Ms};
use crate::rules::name;
use crate::sim::Sim;

/// How long clients have to read a new bundle.
const OVERLAP: Ms = 5000;
/// How stale a Secret may be that a kubelet mounts into a new pod.
const KUBELET_LAG: Ms = 3000;

/// The names of the CAs, by the traffic that they secure.
const SIDES: [&str; 2] = ["peer/", "client/"];

/// The content of a cluster's Secrets.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// The cluster object that they belong to.
    pub(crate) owner: Id,
    pub(crate) bundle: BTreeSet<Ca>,
    pub(crate) issued: BTreeSet<Ca>,
    pub(crate) wanted: BTreeSet<Ca>,
    /// The traffic whose CA is to be rotated.
    renew: BTreeSet<&'static str>,
    /// By the spec the certificates come from another source, and the Secrets for that do not exist yet.
    absent: bool,
    changed: Ms,
    /// The previous certificates, and until when a kubelet may still mount them.
    before: (BTreeSet<Ca>, Ms),
    made: u32,
}

impl Secrets {
    pub(crate) fn new(owner: Id) -> Self {
        let mut secrets = Self {
            owner,
            ..Self::default()
        };
        secrets.create_cas(&SIDES.into());
        secrets.bundle.clone_from(&secrets.wanted);
        secrets.issued.clone_from(&secrets.wanted);
        secrets
    }

    /// Members and clients have separate CAs; either may be rotated alone.
    fn create_cas(&mut self, sides: &BTreeSet<&'static str>) {
        self.made += 1;
        self.wanted
            .retain(|name| !sides.iter().any(|side| name.starts_with(side)));
        let made = |side: &&str| format!("{side}{}.{}", self.owner, self.made);
        let made: Vec<_> = sides.iter().map(made).collect();
        self.wanted.extend(made);
        self.renew.clear();
    }
}

impl Sim<'_> {
    /// Some clusters have TLS, and some of their users request one or two CA rotations.
    pub(crate) fn begin_trust(&mut self) {
        self.kube.now.secrets = None;
        if !self.trust_rng.per_mille(600) {
            return;
        }
        self.kube.now.secrets = Some(Rc::new(Secrets::new(self.truth.owner)));
        if self.profile.edits {
            for _ in 0..self.trust_rng.between(0, 2) {
                let at = self.now + self.trust_rng.between(1, 120_000);
                self.queue.at(at, Event::Rotate);
            }
        }
    }

    /// Requests a rotation of the members' CA.
    pub(crate) fn request_member_ca_rotation(&mut self) {
        if let Some(secrets) = self.kube.secrets_mut() {
            secrets.renew.insert(SIDES[0]);
        }
    }

    /// The user requests a rotation of a CA.
    pub(crate) fn request_ca_rotation(&mut self) {
        if self.calm {
            return;
        }
        let sides = match self.trust_rng.between(0, 2) {
            0 => &SIDES[..],
            1 => &SIDES[..1],
            _ => &SIDES[1..],
        };
        if let Some(secrets) = self.kube.secrets_mut() {
            secrets.renew.extend(sides);
            self.log(|| "user: requests a CA rotation".into());
        }
    }

    /// The user edits the spec: certificates come from another kind of source.
    #[cfg(test)]
    pub(crate) fn change_kind_of_tls(&mut self) {
        if let Some(secrets) = self.kube.secrets_mut() {
            secrets.absent = true;
            self.edit(|intent| intent.template.push_str("-auto"));
        }
    }

    /// Another operator has completed a rotation: all trust and present only the new CA.
    pub(crate) fn rotate_elsewhere(&mut self) {
        let Some(secrets) = self.kube.secrets_mut() else { return };
        secrets.create_cas(&SIDES.into());
        secrets.bundle.clone_from(&secrets.wanted);
        secrets.issued.clone_from(&secrets.wanted);
        let new = secrets.wanted.clone();
        for process in self.processes.values_mut() {
            process.trusts.clone_from(&new);
            process.shows.clone_from(&new);
        }
    }

    /// Another client put the certificates of the previous CA back into the Secrets.
    pub(crate) fn issue_the_old_ones(&mut self) {
        let Some(secrets) = self.kube.secrets_mut() else { return };
        secrets.issued = secrets.bundle.difference(&secrets.wanted).cloned().collect();
        let old = secrets.issued.clone();
        for process in self.processes.values_mut() {
            process.shows.clone_from(&old);
        }
    }

    #[cfg(test)]
    pub(crate) fn only_ca(&self) -> Option<BTreeSet<Ca>> {
        let secrets = self.kube.now.secrets.as_ref()?;
        let one = secrets.bundle == secrets.wanted && secrets.issued == secrets.wanted;
        one.then(|| secrets.wanted.clone())
    }

    /// The Secrets that the spec asks for do not exist yet or are not observed: they must be created before anything
    /// else happens.
    pub(crate) fn certificates_due(&self, owner: Id, shown: &Option<Rc<Secrets>>) -> stateward_etcd::cluster::Secrets {
        let own = |secrets: &&Rc<Secrets>| secrets.owner == owner;
        let asked_for = self.kube.now.secrets.as_ref().is_some_and(|secrets| own(&secrets));
        let seen = shown.as_ref().filter(own).is_some_and(|secrets| !secrets.absent);
        if asked_for && !seen {
            stateward_etcd::cluster::Secrets::Due { first: true }
        } else {
            stateward_etcd::cluster::Secrets::Good
        }
    }

    /// The fresh facts for guards: the Secret for traffic between members, and the one for members as servers.
    pub(crate) fn secrets_now(&self, owner: Id) -> Vec<SecretNow> {
        let Some(secrets) = self.kube.now.secrets.as_ref().filter(|secrets| secrets.owner == owner) else {
            return Vec::new();
        };
        let of = |all: &BTreeSet<Ca>, side: &str| -> BTreeSet<Ca> {
            all.iter().filter(|name| name.starts_with(side)).cloned().collect()
        };
        let secret = |role, side| SecretNow {
            name: format!("demo-{side}tls"),
            role,
            bundle: of(&secrets.bundle, side),
            issued: of(&secrets.issued, side),
        };
        vec![secret(SecretRole::Peer, SIDES[0]), secret(SecretRole::Server, SIDES[1])]
    }

    /// What an operator observes: the Secrets through its cache, the members' certificates by probing them.
    pub(crate) fn observe_trust(
        &self,
        owner: Id,
        secrets: &Option<Rc<Secrets>>,
        world: &World,
        asked: &[Id],
    ) -> Option<Trust> {
        let secrets = secrets
            .as_ref()
            .filter(|secrets| secrets.owner == owner && !secrets.absent)?;
        let shows = |id: &Id| {
            self.operator_reaches(*id)
                && self
                    .processes
                    .get(id)
                    .is_some_and(|process| process.shows == secrets.issued)
        };
        let left = (secrets.changed + OVERLAP).saturating_sub(self.now);
        Some(Trust {
            bundle: secrets.bundle.clone(),
            issued: secrets.issued.clone(),
            wanted: secrets.wanted.clone(),
            managed: true,
            uneven: false,
            renew: !secrets.renew.is_empty(),
            seen: asked.len() == world.pods.len() && asked.iter().all(shows),
            overlap_left: Duration::from_millis(if secrets.changed == 0 { 0 } else { left }),
        })
    }

    /// The Secrets of this cluster, read past all caches: those of another cluster of that name are not its own.
    fn own_secrets(&mut self, cluster: &Cluster) -> Result<&mut Secrets, String> {
        let own = self.kube.secrets_mut().filter(|secrets| secrets.owner == cluster.id);
        own.ok_or_else(|| "denied by a guard: it has no Secrets".into())
    }

    pub(crate) fn renew_ca(&mut self, cluster: &Cluster) -> Result<(), String> {
        let secrets = self.own_secrets(cluster)?;
        if !secrets.renew.is_empty() {
            let sides = secrets.renew.clone();
            secrets.create_cas(&sides);
        }
        Ok(())
    }

    pub(crate) fn trust_cas(&mut self, cluster: &Cluster, cas: &BTreeSet<Ca>) -> Result<(), String> {
        let now = self.now;
        let secrets = self.own_secrets(cluster)?;
        secrets.bundle.clone_from(cas);
        secrets.changed = now;
        Ok(())
    }

    /// Creates what is missing; with `next`, issues certificates of another CA.
    pub(crate) fn issue_certificates(&mut self, cluster: &Cluster, next: bool) -> Result<(), String> {
        let now = self.now;
        let secrets = self.own_secrets(cluster)?;
        if secrets.absent {
            // The certificates that members present stay; the new CA comes in steps.
            secrets.absent = false;
            secrets.create_cas(&SIDES.into());
            return Ok(());
        }
        if !next {
            return Ok(());
        }
        secrets.before = (secrets.issued.clone(), now + KUBELET_LAG);
        secrets.issued = secrets.wanted.clone();
        secrets.changed = now;
        Ok(())
    }

    /// The certificates that a process reads when it starts.
    pub(crate) fn certificates_at_start(&mut self) -> BTreeSet<Ca> {
        let Some(secrets) = self.kube.now.secrets.clone() else {
            return BTreeSet::new();
        };
        let (before, until) = &secrets.before;
        if *until > self.now && self.trust_rng.per_mille(300) {
            before.clone()
        } else {
            secrets.issued.clone()
        }
    }

    /// Kubelets update certificates with a delay, and no member may meet a peer that it cannot verify.
    pub(crate) fn bring_certificates(&mut self) {
        let Some(secrets) = self.kube.now.secrets.clone() else {
            return;
        };
        let owner = self.truth.owner;
        let late: Vec<Id> = self
            .processes
            .iter()
            .filter(|(_, process)| process.owner == owner && process.shows != secrets.issued)
            .filter(|(_, process)| self.nodes[process.node].obeys())
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            if (self.calm || self.trust_rng.per_mille(150))
                && let Some(process) = self.processes.get_mut(&id)
            {
                process.shows.clone_from(&secrets.issued);
            }
        }
        let is_ours =
            |process: &&crate::sim::Process| process.owner == owner && !process.orphan && !process.trusts.is_empty();
        let ours = || self.processes.values().filter(is_ours);
        let pairs = ours().flat_map(|one| ours().map(move |other| (one, other)));
        let unverified = pairs
            .filter(|(one, other)| one.name != other.name)
            .find(|(one, other)| {
                let mut known = other.shows.intersection(&one.trusts);
                !known.any(|name| name.starts_with(SIDES[0]))
            });
        if let Some((one, other)) = unverified {
            let what = format!(
                "{} trusts {:?} and {} presents a certificate of {:?}",
                one.name, one.trusts, other.name, other.shows
            );
            self.break_rule(name::TRUST, what);
        }
    }
}
