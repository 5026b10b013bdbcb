//! The facts that guards rest on, read past all caches. Whether a guard holds is said by `stateward_mysql::guard`.

use std::time::Duration;

use stateward_core::ObjectVersion;
use stateward_core::kind::Kind;
use stateward_mysql::action::Action;
use stateward_mysql::guard::{self, Check, Fresh, Guard, Need, Planned};
use stateward_mysql::kind::MySQLClusters;
use stateward_mysql::names;
use stateward_mysql::world::{Ordinal, Reply};
use stateward_runtime::{Failure, Step, worker};

use crate::client::reply;
use crate::driver::MySQLDriver;
use crate::observe::add_volume;

/// How long the saved transactions of a member may be asked for.
const SAVED: Duration = Duration::from_secs(2);

/// The guards of an action.
fn guards(step: &Step<'_, MySQLDriver>, action: &Action) -> Vec<Guard> {
    let memory = MySQLClusters::memory(&MySQLClusters::stored(step.object));
    let hosts = |member| names::host(&step.intent.name, &step.intent.namespace, member);
    let planned = Planned {
        version: ObjectVersion::of(&step.object.metadata),
        memory: &memory,
        hosts: &hosts,
    };
    guard::guards(action, &planned)
}

/// All guards of an action hold at this moment.
pub(crate) async fn must_hold(
    driver: &MySQLDriver,
    step: &Step<'_, MySQLDriver>,
    action: &Action,
) -> Result<(), Failure> {
    let mut fresh = Fresh {
        cluster: step.seen.lately(),
        ..Fresh::default()
    };
    let guards = guards(step, action);
    let saved = guards.iter().any(|guard| matches!(guard, Guard::Saved { .. }));
    for guard in guards {
        let mut reads = 0;
        loop {
            match guard.check(&fresh) {
                Check::Holds => break,
                Check::Refused(why) => return Err(Failure::GuardFailed(why)),
                // A guard asks for what it needs once.
                Check::Unread(_) if reads > 1 => {
                    return Err(Failure::Failed("a guard asks for what it was given".into()));
                }
                Check::Unread(need) => read(driver, step, need, saved, &mut fresh).await?,
            }
            reads += 1;
        }
    }
    Ok(())
}

async fn read(
    driver: &MySQLDriver,
    step: &Step<'_, MySQLDriver>,
    need: Need,
    saved: bool,
    fresh: &mut Fresh,
) -> Result<(), Failure> {
    match need {
        Need::Cluster => fresh.cluster = Some(worker::read(driver, step).await?),
        Need::Servers(members) => {
            // One after the other: what a guard compares was read in this order.
            for member in members {
                let reply = server(step, member, saved).await;
                fresh.replies.insert(member, reply);
            }
        }
    }
    Ok(())
}

async fn server(step: &Step<'_, MySQLDriver>, member: Ordinal, saved: bool) -> Option<Reply> {
    let reach = step.observed.means.reach.get(&member)?;
    let asked = reply::ask(&mut reach.server.session().await, reach.accounts.as_ref()).await;
    let mut reply = match asked {
        Ok(reply) => reply,
        Err(error) => {
            tracing::debug!(%error, "member {member} does not reply to a guard");
            return None;
        }
    };
    if saved
        && let Some(agent) = &reach.agent
        && let Ok(Ok(said)) = tokio::time::timeout(SAVED, agent.state()).await
    {
        add_volume(&mut reply, &said);
    }
    Some(reply)
}
