//! Convergence: once faults stop, the cluster comes to match the spec, and then nothing is done or written any more.

use stateward_core::conditions::ConditionStatus;
use stateward_core::kind::Plan;

use super::execute::{DEFAULT_SETTING, VARIABLE};
use super::operator::wanted;
use super::rules::Moment;
use super::server::Ms;
use super::state::Sim;
use crate::api::MySQLClusterStatus;
use crate::kind::MySQLClusters;
use crate::world::{Ordinal, Role};
use crate::{Intent, Memory};

/// How far it has come.
#[derive(Default)]
pub(super) struct Settling {
    /// Reconciles in a row that found nothing to do.
    idle: u32,
    /// How often it changed again.
    unsettled: u32,
    /// It matched the spec and nothing was done any more.
    pub(super) done: bool,
    /// Why it has not converged yet.
    pub(super) why: String,
}

/// So long may it take.
pub(super) const PATIENCE: Ms = 400_000;

/// After so many reconciles without anything to do it has settled.
const IDLE: u32 = 4;

impl Sim<'_> {
    pub(super) fn check_settled(
        &mut self,
        intent: &Intent,
        memory: &Memory,
        status: &MySQLClusterStatus,
        idle: bool,
        plan: &Plan<MySQLClusters>,
    ) {
        if self.settling.done {
            return;
        }
        let differs = self.differs(intent, memory, status);
        let matches = differs.is_none();
        if matches && idle {
            self.settling.idle += 1;
            self.settling.done = self.settling.idle >= IDLE;
            return;
        }
        let actions: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
        self.settling.why = match differs {
            Some(why) => format!("{why}; {}", status.waiting),
            None => format!("the status changes, or actions go on: {}", actions.join("; ")),
        };
        if std::mem::take(&mut self.settling.idle) > 0 {
            self.settling.unsettled += 1;
            if self.settling.unsettled > 6 {
                let why = self.settling.why.clone();
                self.judge(&Moment::Restless { why: &why });
            }
        }
    }

    /// The first difference between the spec and the real state.
    fn differs(&self, intent: &Intent, memory: &Memory, status: &MySQLClusterStatus) -> Option<String> {
        let problem = |text: &str| Some(text.to_owned());
        let leftover = if memory.failover.is_some() || memory.switchover.is_some() {
            problem("the primary changes")
        } else if memory.pending.is_some() || memory.acks != intent.acks || memory.required != intent.acks {
            problem("the acknowledgements change")
        } else if !memory.quarantine.is_empty() || !memory.expelled.is_empty() {
            problem("members are kept out")
        } else {
            None
        };
        if leftover.is_some() {
            return leftover;
        }
        let Some(primary) = memory.primary else {
            return problem("no primary");
        };
        if intent.prefer.is_some_and(|prefer| prefer != primary) {
            return problem("another member is preferred");
        }
        for member in intent.members() {
            if let Some(why) = self.member_differs(intent, memory, primary, member) {
                return Some(format!("{member}: {why}"));
            }
        }
        let extra = |member: &&Ordinal| member.0 >= intent.size;
        if let Some(member) = self.kube.pods.keys().chain(self.kube.claims.keys()).find(extra) {
            return Some(format!("{member} is still there"));
        }
        let wanted = wanted(intent);
        let set = self.kube.set.as_ref()?;
        if set.shown.template != wanted.template || set.shown.metadata != wanted.metadata {
            return problem("the StatefulSet is old");
        }
        if memory.current != Some(intent.wanted) {
            return problem("the version is not reached");
        }
        let holds = |type_: &str| {
            let condition = status.conditions.iter().find(|condition| condition.type_ == type_);
            condition.is_some_and(|condition| condition.status == ConditionStatus::True)
        };
        if !holds("Available") || holds("Degraded") || holds("Progressing") || !status.waiting.is_empty() {
            return Some(format!("the status says: {}", status.waiting));
        }
        None
    }

    fn member_differs(&self, intent: &Intent, memory: &Memory, primary: Ordinal, member: Ordinal) -> Option<String> {
        let problem = |text: &str| Some(text.to_owned());
        let Some(pod) = self.kube.pods.get(&member) else {
            return problem("no pod");
        };
        let facts = &pod.shown.facts;
        if facts.terminating || !facts.ready || pod.shown.template != wanted(intent).template {
            return problem("its pod is not as wanted");
        }
        let Some((process, data)) = self
            .by_host(member)
            .and_then(|boot| Some((self.process(boot)?, self.data(boot)?)))
        else {
            return problem("no server");
        };
        let leads = member == primary;
        if process.read_only == leads {
            return Some(format!("read-only is {}", process.read_only));
        }
        let role = if leads { Role::Primary } else { Role::Replica };
        let reads = !leads || intent.size == 1;
        if pod.shown.role != Some(role) || pod.shown.reads != reads {
            return Some(format!(
                "it is labelled {:?}, reads {}",
                pod.shown.role, pod.shown.reads
            ));
        }
        let setting = self.setting_of(intent, leads);
        if process.setting != setting {
            return Some(format!("{VARIABLE} is {} instead of {setting}", process.setting));
        }
        if format!("c{}", process.certificate) != self.kube.tls.fingerprint.clone().unwrap_or_default() {
            return problem("it presents an old certificate");
        }
        let Some(source) = self.by_host(primary) else {
            return problem("no primary");
        };
        if leads {
            let waits = if process.waits { process.acks } else { 0 };
            if waits != intent.acks || !process.waiting.is_empty() {
                return Some(format!(
                    "it waits for {waits} acks, with {} commits",
                    process.waiting.len()
                ));
            }
        } else {
            let receiver = process.receiver.as_ref();
            let connected = receiver
                .and_then(|receiver| receiver.connection)
                .is_some_and(|(to, _)| to == source);
            let acknowledges = receiver.is_some_and(|receiver| receiver.acknowledges);
            let wanted = intent.acks > 0;
            if !connected || (wanted && !(acknowledges && memory.ackers.contains(&member))) {
                return Some(format!("connected {connected}, acknowledges {acknowledges}"));
            }
            let theirs = self.data(source).map(|data| data.executed).unwrap_or_default();
            if data.executed != theirs || data.hollow {
                return problem("it has other transactions than the primary");
            }
        }
        let lost = !data.executed.contains(&self.truth.acknowledged);
        lost.then(|| "it lacks acknowledged writes".to_owned())
    }

    fn setting_of(&self, intent: &Intent, leads: bool) -> u64 {
        let config = &intent.config;
        let of_role = if leads { &config.primary } else { &config.replica };
        let value = of_role.get(VARIABLE).or(config.all.get(VARIABLE));
        value.and_then(|value| value.parse().ok()).unwrap_or(DEFAULT_SETTING)
    }
}
