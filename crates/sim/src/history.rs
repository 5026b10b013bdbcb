//! One history: a cluster is created, faults are injected, faults stop, and in the end the state must match the spec.

use stateward_etcd::cluster::{Plan, Reason, World};

use crate::kube::Cluster;
use crate::profile::Profile;
use crate::queue::{Event, Ms};
use crate::rng::Rng;
use crate::rules::{is_retained, name, not_as_expected};
use crate::sim::{Sim, Violation};
use crate::subject::Subject;
use crate::user::first_intent;

/// How long a cluster may take to converge after the last fault.
const PATIENCE: Ms = 40 * 60_000;
/// How long it must stay converged.
const REST: Ms = 45_000;

/// The result of one history.
#[derive(Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// The rule it broke, if it broke one.
    pub broken: Option<Violation>,
    /// The number of reconciles.
    pub rounds: u64,
    /// Virtual milliseconds.
    pub time: u64,
    /// Writes that a client got an acknowledgement for.
    pub writes: usize,
    /// It converged, and did not end with a lost majority that the status reports.
    pub at_rest: bool,
    /// What happened, line by line, if requested.
    pub story: Vec<String>,
}

/// Runs the history of a seed.
pub fn run(subject: &Subject, seed: u64) -> Outcome {
    history(subject, seed, false)
}

/// Runs the history of a seed and keeps its log.
pub fn replay(subject: &Subject, seed: u64) -> Outcome {
    history(subject, seed, true)
}

fn history(subject: &Subject, seed: u64, with_log: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let profile = Profile::draw(&mut rng);
    let intent = first_intent(&mut rng);
    let first = rng.between(0, 40_000);
    let mut sim = Sim::new(seed, profile, subject, with_log);
    let line = format!("{:?}", sim.profile);
    sim.log(|| line);
    sim.create_cluster(intent);
    sim.draw_first_restore(&mut Rng::new(seed ^ 0xbac_0ff));
    sim.wake_operator(0, 5);
    sim.queue.at(first, Event::Fault);
    while !sim.calm && sim.step(Ms::MAX) {}
    sim.come_to_rest();
    if sim.settled.is_some() && sim.broken.is_none() && sim.final_check() {
        sim.come_to_rest();
    }
    Outcome {
        seed,
        rounds: sim.rounds,
        time: sim.now,
        writes: sim.truth.acknowledged.len(),
        at_rest: sim.settled.is_some(),
        story: sim.take_log(),
        broken: sim.broken,
    }
}

impl Sim<'_> {
    /// Runs until the cluster has been as expected for a while, or the time limit is over.
    pub(crate) fn come_to_rest(&mut self) {
        let until = self.now + PATIENCE;
        self.settled = None;
        while self.step(until) {
            if self.settled.is_some_and(|since| since + REST <= self.now) {
                return;
            }
        }
        if self.broken.is_none() && !self.excused() {
            let message = self
                .kube
                .now
                .cluster
                .as_ref()
                .and_then(|cluster| cluster.report.as_ref())
                .map_or_else(String::new, |report| report.waiting.clone());
            self.break_rule(
                name::CONVERGES,
                format!(
                    "it did not within {} min; the status says: {message}",
                    PATIENCE / 60_000
                ),
            );
        }
    }

    /// A majority of volumes is lost and the status reports it, or the only first member is bound to a lost node before
    /// it ever replied: only the user can continue.
    fn excused(&self) -> bool {
        let Some(cluster) = &self.kube.now.cluster else {
            return false;
        };
        let stranded = cluster.record.bootstrap.as_ref().is_some_and(|bootstrap| {
            bootstrap.cluster.is_none()
                && bootstrap.first.iter().any(|name| {
                    let claim = self.kube.now.claims.get(name);
                    let volume = claim.and_then(|claim| self.volumes.get(&claim.volume?));
                    volume.is_some_and(|volume| volume.node.is_some_and(|node| self.nodes[node].gone))
                })
        });
        // CORRUPT without a majority, or in the middle of a version change without durable data: only a person can
        // decide which data is right.
        let incomparable = cluster.report.as_ref().is_some_and(|report| {
            matches!(
                report.progressing.reason,
                Reason::DataNotComparable | Reason::DataDiffers
            )
        });
        let says_so = cluster.report.as_ref().is_some_and(|report| !report.waiting.is_empty());
        // With a member that was added and never started, and cannot be known to have no data, the others are no
        // quorum.
        let voters = self.truth.conf.iter().filter(|line| !line.learner);
        let with_data = voters.clone().filter(|line| {
            let mut volumes = self.volumes.values().filter(|volume| !volume.corrupt);
            volumes.any(|volume| volume.data.as_ref().is_some_and(|data| data.id == line.id))
        });
        let no_quorum = voters.clone().count() > 0 && with_data.count() <= voters.count() / 2;
        says_so && (self.truth.majority_lost || stranded || no_quorum || incomparable)
    }

    /// Without faults: is everything as expected, with nothing left to execute or to write?
    pub(crate) fn check_settled(&mut self, cluster: &Cluster, world: &World, plan: &Plan) {
        if !self.calm {
            return;
        }
        let is_idle = plan.effects.is_empty()
            && plan.report.waiting.is_empty()
            && plan.record == cluster.record
            && cluster.report.as_ref() == Some(&plan.report);
        let differs = self.differs(cluster, world);
        if is_idle && differs.is_none() {
            if self.settled.is_none() {
                self.settled = Some(self.now);
                self.log(|| "everything is as expected".into());
            }
        } else if plan.effects.is_empty() && differs.is_none() {
            // A change is observed a moment later. A cluster that keeps changing never converges.
            if self.settled.take().is_some() {
                self.unsettled += 1;
            }
            if self.unsettled > 3 {
                self.break_rule(name::CONVERGES, "the status keeps changing");
            }
        } else if self.settled.take().is_some() {
            let why = differs.unwrap_or_else(|| {
                let effects: Vec<String> = plan.effects.iter().map(ToString::to_string).collect();
                format!("the plan is not empty or the record changes: {}", effects.join("; "))
            });
            self.break_rule(name::CONVERGES, format!("it had converged and did not stay so: {why}"));
        }
    }

    fn differs(&self, cluster: &Cluster, world: &World) -> Option<String> {
        let intent = &cluster.intent;
        if let Some(why) = not_as_expected(intent, &cluster.record, world) {
            return Some(why);
        }
        if self.election_is_due() {
            return Some("a member has a higher term than the leader".into());
        }
        if self.restore_waits() {
            return Some("an EtcdRestore is not complete".into());
        }
        if intent.hibernate {
            return None;
        }
        if world.list.is_none() {
            return Some("no member list is proven".into());
        }
        let claims = world.claims.values();
        let claims = claims.filter(|claim| !is_retained(intent, &cluster.record, &claim.uid));
        let count = claims.count();
        if intent.is_durable() && count != intent.size {
            return Some(format!("{count} claims"));
        }
        if world
            .list
            .as_ref()
            .is_some_and(|list| list.members.len() != intent.size)
        {
            return Some("a foreign member is in the list".into());
        }
        let target = cluster.record.current.as_ref();
        if let Some(pod) = world.pods.values().find(|pod| Some(&pod.version) != target) {
            return Some(format!("a pod runs {}", pod.version));
        }
        let services = &world.services;
        let made = services.peer.as_deref() == Some("p")
            && services.client.as_deref() == Some("c")
            && services.budget.as_deref() == Some("b");
        if !made {
            return Some("a service is missing".into());
        }
        None
    }

    /// The cluster is healthy. A member that loses its data now must be replaced, and must not come back without its
    /// memory.
    fn final_check(&mut self) -> bool {
        let voters = self.truth.conf.iter().filter(|line| !line.learner).count();
        if voters < 3 || !self.rng.per_mille(300) {
            return false;
        }
        let leader = self
            .processes
            .iter()
            .find(|(_, process)| process.leads)
            .map(|(id, _)| *id);
        let followers: Vec<_> = self
            .kube
            .now
            .pods
            .values()
            .filter(|pod| Some(pod.id) != leader && pod.owner == self.truth.owner)
            .filter_map(|pod| Some((pod.id, pod.volume?)))
            .collect();
        let Some((pod, volume)) = self.rng.pick(&followers).copied() else {
            return false;
        };
        self.log(|| "the final check".into());
        self.wipe(pod, volume);
        true
    }
}
