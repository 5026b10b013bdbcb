//! Executing what was planned for a MySQLCluster. Every action may be repeated: each looks first at what is already so.

mod accounts;
mod clone;
mod found;
mod objects;
mod open;
mod passwords;
mod purge;
mod replicate;
mod variables;

use stateward_mysql::agent::{Ended, Saving};
use stateward_mysql::intent::Intent;
use stateward_mysql::world::{Ordinal, Reply, World};
use stateward_mysql::{Action, GtidSet, MySQLCluster};
use stateward_runtime::{Failure, Key, Runtime, Step};

use crate::caches::Caches;
use crate::client::server::{Server, Session};
use crate::client::{Error, code};
use crate::driver::MySQLDriver;
use crate::observe::Means;
use crate::secrets::{self, Passwords, Writer};
use crate::session::Reach;
use crate::tls;

/// Executes what was planned for a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Executor<'a> {
    driver: &'a MySQLDriver,
    runtime: &'a Runtime,
    caches: &'a Caches,
    key: &'a Key,
    cluster: &'a MySQLCluster,
    intent: &'a Intent,
    world: &'a World,
    means: &'a Means,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            // Somebody holds a lock that will be released.
            Error::Server { code, .. } if *code == code::LOCK_TIMEOUT => Self::NotYet(error.to_string()),
            Error::TimedOut | Error::Refused | Error::Broken(_) => Self::NotYet(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl<'a> Executor<'a> {
    pub(crate) fn new(driver: &'a MySQLDriver, step: &'a Step<'a, MySQLDriver>) -> Self {
        Self {
            driver,
            runtime: &driver.runtime,
            caches: &driver.caches,
            key: step.key,
            cluster: step.object,
            intent: step.intent,
            world: &step.observed.world,
            means: &step.observed.means,
        }
    }

    pub(crate) async fn execute(self, action: &Action) -> Result<(), Failure> {
        match action {
            Action::EnsureSecrets => secrets::ensure(self.writer()).await,
            Action::IssueCertificates => tls::issue(self.writer()).await,
            Action::Apply(_)
            | Action::ApplySet { .. }
            | Action::ScaleIn { .. }
            | Action::Label { .. }
            | Action::DeletePod { .. }
            | Action::DeleteClaim { .. }
            | Action::GrowClaim { .. }
            | Action::OwnClaim { .. }
            | Action::TakeBackup { .. } => self.on_kubernetes(action).await,
            Action::Found { member, .. } => self.found(*member).await,
            Action::Clone { member, donor, .. } => self.clone_from(*member, *donor).await,
            Action::Replicate {
                member,
                source,
                acknowledge,
                ..
            } => self.replicate(*member, *source, *acknowledge).await,
            Action::StopReceiver { member, .. } => self.stop_receiver(*member).await,
            Action::Expel { primary, member, .. } => self.expel(*primary, *member).await,
            Action::Readmit { primary, member, .. } => self.readmit(*primary, *member).await,
            Action::SetAcks { member, acks, .. } => self.set_acks(*member, *acks).await,
            Action::Nudge { member, .. } => self.nudge(*member).await,
            Action::Open { member, acks, .. } => self.open(*member, *acks).await,
            Action::Close { member, .. } => self.close(*member).await,
            Action::EndProcess { member, uid } => self.end_process(*member, &uid.0).await,
            Action::SetVariables {
                member,
                process,
                values,
                hash,
            } => self.set_variables(*member, process, values, hash).await,
            Action::SaveErrant { member, gtids, .. } => self.save_errant(*member, gtids).await,
            Action::RotatePasswords { primary, rotation, .. } => self.rotate(*primary, rotation).await,
            Action::DiscardOldPasswords { primary, .. } => self.discard_old(*primary).await,
            Action::ReloadCertificates { member, .. } => {
                let mut session = self.session(*member).await?;
                Ok(session.run("ALTER INSTANCE RELOAD TLS").await?)
            }
            Action::PurgeBinlogs { member, keep, .. } => self.purge(*member, keep).await,
            Action::Tell(note) => {
                self.runtime.events.tell(self.cluster, note);
                Ok(())
            }
        }
    }

    fn writer(self) -> Writer<'a> {
        Writer {
            runtime: self.runtime,
            caches: self.caches,
            cluster: self.key,
            intent: self.intent,
        }
    }

    fn reach(self, member: Ordinal) -> Result<&'a Reach, Failure> {
        let reach = self.means.reach.get(&member);
        reach.ok_or_else(|| Failure::GuardFailed(format!("member {member} cannot be reached")))
    }

    fn server(self, member: Ordinal) -> Result<&'a Server, Failure> {
        Ok(&self.reach(member)?.server)
    }

    async fn session(self, member: Ordinal) -> Result<Session<'a>, Failure> {
        Ok(self.server(member)?.session().await)
    }

    /// What a server said when the world was observed.
    fn reply(self, member: Ordinal) -> Option<&'a Reply> {
        self.world.members.get(&member)?.reply()
    }

    fn passwords(self) -> Result<&'a Passwords, Failure> {
        let passwords = self.means.passwords.as_ref();
        passwords.ok_or_else(|| Failure::GuardFailed("the Secret with passwords is not there".into()))
    }

    fn password(self, account: &str) -> Result<std::sync::Arc<str>, Failure> {
        let password = self.passwords()?.of(account);
        password.ok_or_else(|| Failure::Failed(format!("no password of {account} is in the Secret of the cluster")))
    }

    /// Ends the process that was seen in this pod. One that was started since is not ended.
    async fn end_process(self, member: Ordinal, uid: &str) -> Result<(), Failure> {
        let reach = self.reach(member)?;
        if reach.pod != uid {
            return Err(Failure::GuardFailed(format!("the pod of {member} is another one now")));
        }
        let agent = reach.agent.as_ref();
        let agent = agent.ok_or_else(|| Failure::NotYet(format!("the agent of {member} cannot be reached")))?;
        let boot = reach.accounts.as_ref().map(|(process, _)| process.boot.clone());
        match agent.end(boot).await {
            Ok(Ended::Killed { .. } | Ended::Other { .. } | Ended::NotRunning) => Ok(()),
            Err(error) => Err(Failure::NotYet(error.to_string())),
        }
    }

    async fn save_errant(self, member: Ordinal, gtids: &GtidSet) -> Result<(), Failure> {
        let agent = self.reach(member)?.agent.as_ref();
        let agent = agent.ok_or_else(|| Failure::NotYet(format!("the agent of {member} cannot be reached")))?;
        match agent.save(gtids.clone()).await {
            Ok(Saving::Saved { .. }) => Ok(()),
            Ok(Saving::Running) => Err(Failure::NotYet("the transactions are being saved".into())),
            Ok(Saving::Failed { reason }) => Err(Failure::Failed(reason)),
            Err(error) => Err(Failure::NotYet(error.to_string())),
        }
    }
}
