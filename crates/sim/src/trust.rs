//! Certificates and whom members trust: Secrets that say it, kubelets that bring new certificates late, and etcd, which
//! reads certificates anew at every handshake and the trusted authorities only when it starts.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use stateward_plan::etcd::guard::{SecretNow, SecretRole};
use stateward_plan::etcd::{Authority, Trust, World};

use crate::kube::Cluster;
use crate::queue::{Event, Id, Ms};
use crate::rules::name;
use crate::sim::Sim;

/// For how long clients are left to read what is new.
const OVERLAP: Ms = 5000;
/// A kubelet that is asked for a new pod may have what the Secret said so long ago.
const KUBELET_LAG: Ms = 3000;

/// How authorities are named, by whose traffic they vouch for.
const SIDES: [&str; 2] = ["peer/", "client/"];

/// What the Secrets of a cluster say.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// The cluster object that they belong to.
    pub(crate) owner: Id,
    pub(crate) bundle: BTreeSet<Authority>,
    pub(crate) issued: BTreeSet<Authority>,
    pub(crate) wanted: BTreeSet<Authority>,
    /// The traffic whose authority is to be replaced.
    renew: BTreeSet<&'static str>,
    /// The certificates come from elsewhere by the spec, and the Secrets for that are not there yet.
    absent: bool,
    changed: Ms,
    /// The certificates before, and until when a kubelet may still have them.
    before: (BTreeSet<Authority>, Ms),
    made: u32,
}

impl Secrets {
    pub(crate) fn new(owner: Id) -> Self {
        let mut secrets = Self {
            owner,
            ..Self::default()
        };
        secrets.make_authorities(&SIDES.into());
        secrets.bundle.clone_from(&secrets.wanted);
        secrets.issued.clone_from(&secrets.wanted);
        secrets
    }

    /// Members and clients have authorities of their own; either may come alone.
    fn make_authorities(&mut self, sides: &BTreeSet<&'static str>) {
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
    /// Some clusters have TLS, and some of their users ask for another authority once or twice.
    pub(crate) fn begin_trust(&mut self) {
        self.kube.now.secrets = None;
        if !self.trust_dice.per_mille(600) {
            return;
        }
        self.kube.now.secrets = Some(Rc::new(Secrets::new(self.ledger.owner)));
        if self.profile.edits {
            for _ in 0..self.trust_dice.between(0, 2) {
                let at = self.now + self.trust_dice.between(1, 120_000);
                self.queue.at(at, Event::Rotate);
            }
        }
    }

    /// Members are to have another authority.
    pub(crate) fn ask_for_another_authority_of_members(&mut self) {
        if let Some(secrets) = self.kube.secrets_mut() {
            secrets.renew.insert(SIDES[0]);
        }
    }

    /// The user asks for another authority.
    pub(crate) fn ask_for_another_authority(&mut self) {
        if self.calm {
            return;
        }
        let sides = match self.trust_dice.between(0, 2) {
            0 => &SIDES[..],
            1 => &SIDES[..1],
            _ => &SIDES[1..],
        };
        if let Some(secrets) = self.kube.secrets_mut() {
            secrets.renew.extend(sides);
            self.tell(|| "user: asks for another certificate authority".into());
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

    /// Somebody else has brought a rotation to its end: everybody trusts and shows the new authority alone.
    pub(crate) fn rotate_elsewhere(&mut self) {
        let Some(secrets) = self.kube.secrets_mut() else { return };
        secrets.make_authorities(&SIDES.into());
        secrets.bundle.clone_from(&secrets.wanted);
        secrets.issued.clone_from(&secrets.wanted);
        let new = secrets.wanted.clone();
        for process in self.processes.values_mut() {
            process.trusts.clone_from(&new);
            process.shows.clone_from(&new);
        }
    }

    /// Somebody put the certificates of the authority before back into the Secrets.
    pub(crate) fn hand_out_the_old_ones(&mut self) {
        let Some(secrets) = self.kube.secrets_mut() else { return };
        secrets.issued = secrets.bundle.difference(&secrets.wanted).cloned().collect();
        let old = secrets.issued.clone();
        for process in self.processes.values_mut() {
            process.shows.clone_from(&old);
        }
    }

    #[cfg(test)]
    pub(crate) fn authorities_are_one(&self) -> Option<BTreeSet<Authority>> {
        let secrets = self.kube.now.secrets.as_ref()?;
        let one = secrets.bundle == secrets.wanted && secrets.issued == secrets.wanted;
        one.then(|| secrets.wanted.clone())
    }

    /// The Secrets that the spec asks for are not there yet, or not seen: they are to be made before anything else is done.
    pub(crate) fn certificates_due(&self, owner: Id, shown: &Option<Rc<Secrets>>) -> stateward_plan::etcd::Secrets {
        let own = |secrets: &&Rc<Secrets>| secrets.owner == owner;
        let asked_for = self.kube.now.secrets.as_ref().is_some_and(|secrets| own(&secrets));
        let seen = shown.as_ref().filter(own).is_some_and(|secrets| !secrets.absent);
        if asked_for && !seen {
            stateward_plan::etcd::Secrets::Due { first: true }
        } else {
            stateward_plan::etcd::Secrets::Good
        }
    }

    /// What guards see of it: the Secret of members among each other, and that of members as servers.
    pub(crate) fn secrets_now(&self, owner: Id) -> Vec<SecretNow> {
        let Some(secrets) = self.kube.now.secrets.as_ref().filter(|secrets| secrets.owner == owner) else {
            return Vec::new();
        };
        let of = |all: &BTreeSet<Authority>, side: &str| -> BTreeSet<Authority> {
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

    /// What an operator sees of it: the Secrets through its cache, the members' certificates by asking them.
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

    /// The Secrets of this cluster, past all caches: those of another one of that name are not its own.
    fn own_secrets(&mut self, cluster: &Cluster) -> Result<&mut Secrets, String> {
        let own = self.kube.secrets_mut().filter(|secrets| secrets.owner == cluster.id);
        own.ok_or_else(|| "refused: it has no Secrets".into())
    }

    pub(crate) fn renew_authority(&mut self, cluster: &Cluster) -> Result<(), String> {
        let secrets = self.own_secrets(cluster)?;
        if !secrets.renew.is_empty() {
            let sides = secrets.renew.clone();
            secrets.make_authorities(&sides);
        }
        Ok(())
    }

    pub(crate) fn trust_authorities(
        &mut self,
        cluster: &Cluster,
        authorities: &BTreeSet<Authority>,
    ) -> Result<(), String> {
        let now = self.now;
        let secrets = self.own_secrets(cluster)?;
        secrets.bundle.clone_from(authorities);
        secrets.changed = now;
        Ok(())
    }

    /// Makes what is missing; with `next`, hands out certificates of another authority.
    pub(crate) fn issue_certificates(&mut self, cluster: &Cluster, next: bool) -> Result<(), String> {
        let now = self.now;
        let secrets = self.own_secrets(cluster)?;
        if secrets.absent {
            // What members show is handed out on; the new authority comes by steps.
            secrets.absent = false;
            secrets.make_authorities(&SIDES.into());
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

    /// The certificates that a process finds when it starts.
    pub(crate) fn certificates_at_start(&mut self) -> BTreeSet<Authority> {
        let Some(secrets) = self.kube.now.secrets.clone() else {
            return BTreeSet::new();
        };
        let (before, until) = &secrets.before;
        if *until > self.now && self.trust_dice.per_mille(300) {
            before.clone()
        } else {
            secrets.issued.clone()
        }
    }

    /// Kubelets bring new certificates by and by; and no member may meet a peer that it cannot verify.
    pub(crate) fn bring_certificates(&mut self) {
        let Some(secrets) = self.kube.now.secrets.clone() else {
            return;
        };
        let owner = self.ledger.owner;
        let late: Vec<Id> = self
            .processes
            .iter()
            .filter(|(_, process)| process.owner == owner && process.shows != secrets.issued)
            .filter(|(_, process)| self.nodes[process.node].obeys())
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            if (self.calm || self.trust_dice.per_mille(150))
                && let Some(process) = self.processes.get_mut(&id)
            {
                process.shows.clone_from(&secrets.issued);
            }
        }
        let is_ours =
            |process: &&crate::sim::Process| process.owner == owner && !process.orphan && !process.trusts.is_empty();
        let ours = || self.processes.values().filter(is_ours);
        let strangers = ours().flat_map(|one| ours().map(move |other| (one, other)));
        let stranger = strangers
            .filter(|(one, other)| one.name != other.name)
            .find(|(one, other)| {
                let mut known = other.shows.intersection(&one.trusts);
                !known.any(|name| name.starts_with(SIDES[0]))
            });
        if let Some((one, other)) = stranger {
            let what = format!(
                "{} trusts {:?} and {} shows a certificate of {:?}",
                one.name, one.trusts, other.name, other.shows
            );
            self.break_rule(name::TRUST, what);
        }
    }
}
