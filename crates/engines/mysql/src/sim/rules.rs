//! The rules that no plan may break: each has a name and a predicate over the real state and what happens at this moment. The
//! first ten are those of the design; convergence is checked in `converge`.

use stateward_core::Uid;
use stateward_core::kind::Plan;

use super::server::Process;
use super::state::Sim;
use super::transactions::{Bits, Tx, Writer};
use crate::action::{Action, Stop};
use crate::api::CloneFrom;
use crate::kind::MySQLClusters;
use crate::memory::Memory;
use crate::world::{Channel, Ordinal, Receiver, Reply, Role, World};
use crate::{GtidSet, Intent};

/// What happens, or is about to happen.
pub(super) enum Moment<'a> {
    /// Anything changed.
    Always,
    /// A client's write was acknowledged by a process.
    Acknowledged { tx: Tx, boot: u32 },
    /// Transactions that were received and not applied are deleted.
    Discarded { member: Ordinal, what: Bits },
    /// Commits that waited are released by switching waiting off.
    Released { member: Ordinal },
    /// The StatefulSet has fewer pods.
    ScaledIn { replicas: u32, before: u32 },
    /// A pod's labels change.
    Labelled {
        member: Ordinal,
        role: Option<Role>,
        reads: bool,
    },
    /// A pod is deleted.
    PodDeleted { member: Ordinal, meant: &'a Uid, how: Stop },
    /// A claim is deleted.
    ClaimDeleted { member: Ordinal, meant: &'a Uid },
    /// The first transactions are about to be written.
    Founded { boot: u32 },
    /// A clone begins.
    Cloned {
        member: Ordinal,
        donor: Ordinal,
        discard: &'a GtidSet,
    },
    /// A server begins to follow another.
    Followed { member: Ordinal, source: Ordinal },
    /// A server is about to be writable.
    Opened { boot: u32, acks: u32 },
    /// Binlogs are deleted.
    Purged { member: Ordinal, purged: Bits },
    /// An action that rests on the MySQLCluster is about to be executed.
    Acted { action: &'a Action },
    /// A plan was made.
    Planned {
        intent: &'a Intent,
        memory: &'a Memory,
        world: &'a World,
        plan: &'a Plan<MySQLClusters>,
    },
    /// A status was stored.
    Stored { meant: &'a Memory, kept: &'a Memory },
    /// Faults have stopped, and this is why it has not converged, or not stayed so.
    Restless { why: &'a str },
}

type Kept = Result<(), String>;

/// A rule.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) keeps: fn(&Sim<'_>, &Moment<'_>) -> Kept,
}

/// The names of the rules.
pub(super) mod name {
    pub(crate) const WRITES: &str = "rule 1: every acknowledged write is in every later primary";
    pub(crate) const ONE_WRITER: &str = "rule 2: never two servers that can acknowledge writes";
    pub(crate) const RECORDED: &str =
        "rule 3: who acknowledges is recorded, and k of them hold each acknowledged write";
    pub(crate) const RELAY: &str = "rule 4: what an acknowledger received is never discarded";
    pub(crate) const EXPOSED: &str = "rule 5: a primary is opened when enough hold what it has, and waits for as many";
    pub(crate) const ERRANT: &str = "rule 6: errant members never join, donate, serve or are promoted";
    pub(crate) const SAVED: &str = "a server's own transactions are saved before they are discarded";
    pub(crate) const DONOR: &str = "rule 7: the donor of a clone is a clean replica if there is one";
    pub(crate) const BINLOGS: &str = "rule 8: no binlog is purged that a member lacks";
    pub(crate) const VERSIONS: &str = "rule 9: a replica is never older than its primary, which is restarted last";
    pub(crate) const FOUNDED: &str = "rule 10: a cluster is founded once, and every primary begins with that";
    pub(crate) const LABELS: &str = "the Services lead to the recorded writable primary, and to read-only replicas";
    pub(crate) const DELETED: &str = "what holds data that is needed is not deleted, and never by its name alone";
    pub(crate) const AVAILABLE: &str = "no healthy member is stopped when writes would wait for it";
    pub(crate) const PAUSED: &str = "a paused cluster is not touched";
    pub(crate) const REMEMBERED: &str = "the status holds all that must be remembered";
    pub(crate) const CONVERGES: &str = "once faults stop the cluster comes to match the spec and stays so";
}

macro_rules! rules {
    ($($name:ident: $keeps:expr,)*) => {
        /// All of them.
        pub(super) const ALL: &[Rule] = &[$(Rule { name: name::$name, keeps: $keeps },)*];
    };
}

rules! {
    WRITES: writes,
    ONE_WRITER: one_writer,
    RECORDED: recorded,
    RELAY: relay,
    EXPOSED: exposed,
    ERRANT: errant,
    SAVED: saved,
    DONOR: donor,
    BINLOGS: binlogs,
    VERSIONS: versions,
    FOUNDED: founded,
    LABELS: labels,
    DELETED: deleted,
    AVAILABLE: available,
    PAUSED: paused,
    REMEMBERED: remembered,
    CONVERGES: converges,
}

fn that(holds: bool, why_not: impl FnOnce() -> String) -> Kept {
    if holds { Ok(()) } else { Err(why_not()) }
}

fn writes(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let lost = |boot: u32, has: &Bits| {
        let left = sim.truth.acknowledged.minus(has);
        let text = || format!("b{boot} lacks {}", sim.transactions.gtids(&left));
        that(left.is_empty(), text)
    };
    match moment {
        Moment::Opened { boot, .. } => {
            let data = sim.data(*boot);
            lost(*boot, &data.map(|data| data.executed).unwrap_or_default())
        }
        // A former primary may still acknowledge what the next one has.
        Moment::Acknowledged { tx, boot } => {
            let volume = sim.truth.opened_on.and_then(|volume| sim.volumes.get(volume));
            let has = volume.is_none_or(|volume| volume.data.executed.has(*tx));
            that(has, || {
                let text = sim.transactions.gtids(&Bits::from_iter([*tx]));
                format!("b{boot} acknowledges {text}, which the next primary lacks")
            })
        }
        Moment::Always => {
            let opened = sim.truth.opened.and_then(|boot| sim.process(boot));
            match opened.filter(|process| !process.read_only && process.clone.is_none()) {
                Some(process) => lost(process.boot, &sim.volumes[process.volume].data.holds()),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// The replicas that may acknowledge to a process at any moment, without being told to.
fn ackers<'a>(sim: &'a Sim<'_>, to: &'a Process) -> impl Iterator<Item = Ordinal> + 'a {
    let locked = sim.volumes.get(to.volume).map(|volume| &volume.data.locked);
    let at_host = sim.by_host(to.member) == Some(to.boot);
    sim.processes.iter().filter_map(move |process| {
        let receiver = process.receiver.as_ref().filter(|receiver| receiver.acknowledges)?;
        let follows = sim.volumes.get(process.volume)?.data.source == Some(to.member);
        let connected = receiver.connection.is_some_and(|(boot, _)| boot == to.boot);
        let may_connect = at_host && !locked.is_some_and(|locked| locked.contains(&process.member));
        (follows && (connected || may_connect) && process.boot != to.boot).then_some(process.member)
    })
}

fn one_writer(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Always = moment else { return Ok(()) };
    let can = |process: &&Process| {
        let enough = usize::try_from(process.acks).unwrap_or(usize::MAX);
        !process.read_only && (!process.waits || ackers(sim, process).count() >= enough)
    };
    let able: Vec<String> = sim
        .processes
        .iter()
        .filter(can)
        .map(|process| format!("b{} of {}", process.boot, process.member))
        .collect();
    that(able.len() < 2, || able.join(" and "))
}

fn recorded(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Always = moment else { return Ok(()) };
    let memory = &sim.truth.memory;
    // To a former primary that is starved by the others anybody may acknowledge: it is of no use.
    let current = |process: &&Process| Some(process.member) == memory.primary && !process.read_only && process.waits;
    for process in sim.processes.iter().filter(current) {
        if let Some(other) = ackers(sim, process).find(|member| !memory.ackers.contains(member)) {
            return Err(format!(
                "{other} may acknowledge to b{} and is not recorded",
                process.boot
            ));
        }
    }
    let acks = usize::try_from(memory.acks).unwrap_or(0);
    let mut held_by = vec![Bits::default(); acks];
    for member in &memory.ackers {
        let mut carry = sim.ever_held(*member);
        for level in &mut held_by {
            let more = level.and(&carry);
            *level = level.or(&carry);
            carry = more;
        }
    }
    let Some(enough) = held_by.last() else { return Ok(()) };
    let left = sim.truth.acknowledged.minus(enough);
    that(left.is_empty(), || {
        let text = sim.transactions.gtids(&left);
        format!("fewer than {acks} of {:?} hold {text}", memory.ackers)
    })
}

fn relay(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let memory = &sim.truth.memory;
    match moment {
        Moment::Discarded { member, what } => {
            let needed = memory.ackers.contains(member) || !what.and(&sim.truth.acknowledged).is_empty();
            that(!needed, || {
                format!("{member} discards {}", sim.transactions.gtids(what))
            })
        }
        // Nothing is lost that the donor has, or that the user does not want.
        Moment::Cloned { member, donor, discard } if memory.ackers.contains(member) => {
            let (Some(data), Some(donor)) = (sim.data_of(*member), sim.data_of(*donor)) else {
                return Ok(());
            };
            let left = data.received().minus(&donor.executed);
            let unwanted = sim.transactions.named(discard, &left);
            let left = left.minus(&unwanted);
            let lost = !data.hollow && !left.and(&sim.truth.acknowledged).is_empty();
            that(!lost, || format!("{member} forgets {}", sim.transactions.gtids(&left)))
        }
        _ => Ok(()),
    }
}

fn exposed(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let memory = &sim.truth.memory;
    match moment {
        Moment::Opened { boot, acks } => {
            let (Some(process), Some(data)) = (sim.process(*boot), sim.data(*boot)) else {
                return Ok(());
            };
            let holds = |other: &&Ordinal| {
                let data = sim.data_of(**other).map(super::server::Data::holds);
                **other != process.member
                    && data
                        .is_some_and(|has| has.contains(&sim.data(*boot).map(|own| own.executed).unwrap_or_default()))
            };
            let everybody: Vec<Ordinal> = sim.kube.claims.keys().copied().collect();
            let count = everybody.iter().filter(holds).count();
            let enough = u32::try_from(count).unwrap_or(0) >= memory.acks;
            that(enough && *acks >= memory.acks, || {
                let has = sim.transactions.gtids(&data.executed);
                format!(
                    "b{boot} opens with {acks} acks and {count} that hold {has}, {} are recorded",
                    memory.acks
                )
            })
        }
        Moment::Released { member } => that(memory.acks == 0, || {
            format!("commits of {member} that wait are released")
        }),
        Moment::Always => {
            let opened = sim.truth.opened.and_then(|boot| sim.process(boot));
            let Some(process) = opened.filter(|process| !process.read_only) else {
                return Ok(());
            };
            let waits_for = if process.waits { process.acks } else { 0 };
            that(waits_for >= memory.acks, || {
                format!(
                    "b{} waits for {waits_for} acks, {} are recorded",
                    process.boot, memory.acks
                )
            })
        }
        _ => Ok(()),
    }
}

fn errant(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let lacks = |one: &Bits, other: &Bits, who: &str| {
        let own = one.minus(other);
        that(own.is_empty(), || format!("{who} has {}", sim.transactions.gtids(&own)))
    };
    let hollow = |member: Ordinal| {
        let hollow = sim.data_of(member).is_some_and(|data| data.hollow);
        that(!hollow, || {
            format!("{member} lost its data in a clone that is not complete")
        })
    };
    match moment {
        Moment::Followed { member, source } => {
            hollow(*member)?;
            let (Some(data), Some(source)) = (sim.data_of(*member), sim.data_of(*source)) else {
                return Ok(());
            };
            lacks(&data.executed, &source.holds(), &format!("{member}"))
        }
        Moment::Cloned { donor, .. } => {
            hollow(*donor)?;
            let primary = sim.truth.memory.primary.and_then(|primary| sim.data_of(primary));
            let (Some(data), Some(primary)) = (sim.data_of(*donor), primary) else {
                return Ok(());
            };
            that(data.cluster.is_some(), || format!("the donor {donor} has no data"))?;
            lacks(&data.executed, &primary.holds(), &format!("the donor {donor}"))
        }
        Moment::Opened { boot, .. } => {
            let Some(process) = sim.process(*boot) else {
                return Ok(());
            };
            hollow(process.member)?;
            let data = sim.data(*boot).map(|data| data.executed).unwrap_or_default();
            let theirs = data.and(&sim.transactions.by(Writer::Intruder));
            let theirs = theirs.and(&sim.truth.noticed);
            lacks(&theirs, &Bits::default(), &format!("b{boot}"))
        }
        Moment::Planned {
            memory, world, plan, ..
        } => {
            // What the primary received counts, whether it applied it or not.
            let primary = memory.primary.and_then(|primary| world.members.get(&primary)?.reply());
            let same = memory.primary == plan.memory.primary;
            let (Some(ahead), Some(primary), true) = (&world.ahead, primary, same) else {
                return Ok(());
            };
            let ahead = ahead.union(&primary.received());
            let own = |member: &Ordinal| {
                let reply = world.members.get(member).and_then(|member| member.reply());
                let is_primary = memory.primary == Some(*member) && plan.memory.primary == Some(*member);
                reply.is_some_and(|reply| !is_primary && !ahead.contains(&reply.executed))
            };
            let served = plan.actions.iter().find_map(|action| match action {
                Action::Label {
                    member, role, reads, ..
                } => (own(member) && (role.is_some() || *reads)).then_some(*member),
                Action::Replicate { member, .. } => own(member).then_some(*member),
                Action::Clone { donor, .. } => own(donor).then_some(*donor),
                _ => None,
            });
            that(served.is_none(), || format!("{served:?} is errant and takes part"))
        }
        _ => Ok(()),
    }
}

fn saved(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Cloned { member, donor, .. } = moment else {
        return Ok(());
    };
    let (Some(data), Some(donor)) = (sim.data_of(*member), sim.data_of(*donor)) else {
        return Ok(());
    };
    let primary = sim.truth.memory.primary.and_then(|primary| sim.data_of(primary));
    let primary = primary.map(super::server::Data::holds).unwrap_or_default();
    let mut left = data.executed.minus(&donor.executed).minus(&primary);
    for saved in &data.saved {
        left = left.minus(saved);
    }
    that(data.hollow || left.is_empty(), || {
        format!("{} of {member} is not saved", sim.transactions.gtids(&left))
    })
}

fn donor(_: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Planned {
        intent,
        memory,
        world,
        plan,
    } = moment
    else {
        return Ok(());
    };
    let Some(primary) = memory.primary.filter(|_| intent.clone_from == CloneFrom::Replica) else {
        return Ok(());
    };
    for action in &plan.actions {
        let Action::Clone { member, donor, .. } = action else {
            continue;
        };
        if *donor != primary {
            continue;
        }
        let version = world
            .members
            .get(member)
            .and_then(|one| one.reply())
            .map(|reply| reply.version.series());
        let is_better = |reply: &Reply| {
            let channel = reply.channel.as_ref();
            let follows =
                |channel: &Channel| channel.host == intent.host(primary) && channel.receiver == Receiver::Running;
            channel.is_some_and(|channel| follows(channel) && channel.applier)
                && world
                    .ahead
                    .as_ref()
                    .is_some_and(|ahead| ahead.contains(&reply.executed))
                && !reply
                    .clone
                    .as_ref()
                    .is_some_and(|clone| clone.running || clone.error.is_some())
                && reply.cluster.as_ref() == Some(&intent.uid)
                && Some(reply.version.series()) == version
        };
        // Not one that gives another its data already.
        let donates = |one: &Ordinal| {
            let host = intent.host(*one);
            let mut replies = world.members.values().filter_map(|member| member.reply());
            let cloning = replies.any(|reply| {
                reply
                    .clone
                    .as_ref()
                    .is_some_and(|clone| clone.running && clone.donor == host)
            });
            let planned = plan
                .actions
                .iter()
                .any(|action| matches!(action, Action::Clone { donor, .. } if donor == one));
            cloning || planned
        };
        let better = world.members.iter().find(|(other, candidate)| {
            let stays = candidate
                .facts()
                .is_some_and(|facts| facts.running && !facts.terminating);
            ![*member, primary].contains(other)
                && stays
                && memory.ackers.contains(other)
                && !memory.quarantine.contains_key(other)
                && candidate.reply().is_some_and(is_better)
                && !donates(other)
        });
        if let Some((other, _)) = better {
            return Err(format!(
                "{member} is cloned from the primary {donor}, and {other} is a clean replica"
            ));
        }
    }
    Ok(())
}

fn binlogs(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Purged { member, purged } = moment else {
        return Ok(());
    };
    let founded = &sim.truth.founded;
    let full = sim.is_almost_full(*member);
    let lacking = sim.kube.claims.keys().find(|other| {
        let data = sim.data_of(**other);
        let takes_part = *other != member && other.0 < u32::try_from(sim.kube.cluster.spec.size).unwrap_or(0);
        takes_part
            && data
                .is_some_and(|data| !data.hollow && data.executed.contains(founded) && !data.executed.contains(purged))
    });
    that(full || lacking.is_none(), || {
        format!("{member} purges what {lacking:?} lacks")
    })
}

fn versions(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    match moment {
        Moment::Followed { member, source } => {
            let of = |member: Ordinal| {
                let boot = sim.by_host(member)?;
                sim.process(boot).map(|process| process.version)
            };
            let (own, theirs) = (of(*member), of(*source));
            that(own >= theirs || theirs.is_none() || own.is_none(), || {
                format!("{member} with {own:?} follows {source} with {theirs:?}")
            })
        }
        // A primary that serves is restarted only when it has handed its role to another.
        Moment::Planned {
            intent,
            memory,
            world,
            plan,
        } => {
            let restarts = plan.actions.iter().any(|action| {
                matches!(action, Action::DeletePod { member, how: Stop::Restart, .. } if Some(*member) == memory.primary)
            });
            let primary = memory.primary.and_then(|primary| world.members.get(&primary)?.reply());
            let serves = primary.is_some_and(|reply| !reply.read_only);
            let others = world.members.iter().filter(|(other, candidate)| {
                let reply = candidate.reply();
                let caught_up = reply.is_some_and(|reply| {
                    let channel = reply.channel.as_ref();
                    channel.is_some_and(|channel| channel.receiver == Receiver::Running && channel.applier)
                });
                memory.ackers.contains(other) && caught_up && other.0 < intent.size
            });
            let alternative = others.count() > 0 && memory.acks > 0;
            that(!(restarts && serves && alternative) || intent.hibernate, || {
                "a writable primary is restarted".into()
            })
        }
        _ => Ok(()),
    }
}

fn founded(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let (memory, truth) = (&sim.truth.memory, &sim.truth);
    match moment {
        Moment::Founded { boot } => {
            let Some(data) = sim.data(*boot) else { return Ok(()) };
            let same = truth.founder.is_none_or(|founder| founder == data.uuid);
            that(same && !memory.founded(), || "a second cluster is founded".into())?;
            let begun = truth.founded.contains(&data.holds());
            that(begun, || "a server with data is taken for an empty one".into())?;
            let process = sim.process(*boot).map(|process| process.member);
            let seed = memory.bootstrap.as_ref().map(|bootstrap| bootstrap.seed);
            that(seed.is_some() && seed == process, || {
                "the decision is not recorded".into()
            })
        }
        Moment::Opened { boot, .. } => {
            let has = sim.data(*boot).map(|data| data.executed).unwrap_or_default();
            let begins = !truth.founded.is_empty() && has.contains(&truth.founded);
            that(begins && memory.founded(), || {
                format!("b{boot} does not begin with the first transactions")
            })
        }
        _ => Ok(()),
    }
}

fn labels(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Labelled { member, role, reads } = moment else {
        return Ok(());
    };
    let process = sim.by_host(*member).and_then(|boot| sim.process(boot));
    let is_primary = sim.truth.memory.primary == Some(*member);
    match role {
        Some(Role::Primary) => {
            let writable = process.is_some_and(|process| !process.read_only);
            that(is_primary && writable, || {
                format!("{member} is labelled as the primary and is not")
            })?;
            let mut others = sim.kube.pods.iter();
            let other = others.find(|(other, pod)| *other != member && pod.shown.role == Some(Role::Primary));
            that(other.is_none(), || format!("{member} is a second primary"))
        }
        Some(Role::Replica) => {
            let sealed = process.is_none_or(|process| process.read_only);
            that(sealed, || format!("{member} is labelled as a replica and is writable"))
        }
        None => that(
            !*reads || process.is_none_or(|process| process.read_only) || is_primary,
            || format!("{member} serves reads and is writable"),
        ),
    }
}

fn deleted(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let memory = &sim.truth.memory;
    let size = u32::try_from(sim.kube.cluster.spec.size).unwrap_or(0);
    match moment {
        Moment::ClaimDeleted { member, meant } => {
            let Some(claim) = sim.kube.claims.get(member) else {
                return Ok(());
            };
            let same = claim.shown.uid == **meant;
            that(same, || {
                format!("another claim of {member} than the plan meant is deleted")
            })?;
            let lost = sim.volumes.get(claim.volume).is_none_or(|volume| volume.lost);
            let needed = member.0 < size || memory.ackers.contains(member) || memory.primary == Some(*member);
            that(lost || !needed, || format!("the data of {member} is deleted"))
        }
        Moment::PodDeleted { member, meant, how } => {
            let Some(pod) = sim.kube.pods.get(member) else {
                return Ok(());
            };
            let same = pod.shown.facts.uid == **meant;
            that(same, || {
                format!("another pod of {member} than the plan meant is deleted")
            })?;
            let runs = sim.processes.iter().any(|process| process.pod == pod.id);
            that(*how == Stop::Restart || !runs, || {
                format!("{member} is forgotten while it runs")
            })
        }
        Moment::ScaledIn { replicas, before } => {
            if sim.kube.cluster.spec.hibernate || memory.hibernating || replicas >= before {
                return Ok(());
            }
            let mut gone = (*replicas..*before).map(Ordinal);
            let needed = gone
                .find(|member| member.0 < size || memory.ackers.contains(member) || memory.primary == Some(*member));
            that(needed.is_none(), || format!("{needed:?} is scaled in and takes part"))
        }
        _ => Ok(()),
    }
}

fn available(_: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Planned {
        intent,
        memory,
        world,
        plan,
    } = moment
    else {
        return Ok(());
    };
    let stopped: Vec<Ordinal> = plan
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::DeletePod {
                member,
                how: Stop::Restart,
                ..
            } => Some(*member),
            _ => None,
        })
        .collect();
    let healthy = |member: &Ordinal| {
        let one = world.members.get(member);
        let stays = one
            .and_then(|one| one.facts())
            .is_some_and(|facts| facts.running && !facts.terminating);
        let follows = one.and_then(|one| one.reply()).and_then(|reply| reply.channel.as_ref());
        let host = memory.primary.map(|primary| intent.host(primary));
        stays
            && follows
                .is_some_and(|channel| Some(&channel.host) == host.as_ref() && channel.receiver == Receiver::Running)
    };
    let before = memory.ackers.iter().filter(|member| healthy(member)).count();
    let after = memory
        .ackers
        .iter()
        .filter(|member| healthy(member) && !stopped.contains(member))
        .count();
    let acks = usize::try_from(memory.acks).unwrap_or(0);
    let blocks = before >= acks && after < acks && memory.ackers.len() > acks && !intent.hibernate;
    that(!blocks, || {
        format!("{stopped:?} are stopped, and {after} of {acks} acknowledge")
    })
}

fn paused(sim: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    match moment {
        Moment::Planned { intent, plan, .. } => {
            let acts = plan.actions.iter().find(|action| !matches!(action, Action::Tell(_)));
            let acts = acts.filter(|_| intent.paused);
            that(acts.is_none(), || {
                format!("planned: {}", acts.map(ToString::to_string).unwrap_or_default())
            })
        }
        // What was read a moment ago counts as now.
        Moment::Acted { action } => {
            let late = sim.user.paused_since.is_some_and(|since| sim.now > since + 1100);
            that(!late || !sim.kube.cluster.spec.paused, || format!("executed: {action}"))
        }
        _ => Ok(()),
    }
}

fn remembered(_: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Stored { meant, kept } = moment else {
        return Ok(());
    };
    that(meant == kept, || format!("{meant:?} became {kept:?}"))
}

fn converges(_: &Sim<'_>, moment: &Moment<'_>) -> Kept {
    let Moment::Restless { why } = moment else {
        return Ok(());
    };
    Err((*why).to_owned())
}
