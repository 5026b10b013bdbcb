//! Making a server writable and read-only, and what its commits wait for.

use stateward_mysql::world::Ordinal;
use stateward_runtime::Failure;

use super::Executor;
use super::replicate::unapplied;
use crate::client::STATEMENT;
use crate::client::code;
use crate::client::server::{Server, Session, rows_on, text};

/// Sessions that are not Stateward's, replicas' or the server's own.
const CLIENTS: &str = "\
SELECT ID FROM performance_schema.processlist WHERE COALESCE(USER, '') NOT LIKE 'stateward%' \
AND USER NOT IN ('system user', 'event_scheduler', 'unauthenticated user')";

const WAITING: &str = "\
SELECT VARIABLE_VALUE FROM performance_schema.global_status \
WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_wait_sessions'";

/// How often sessions are ended that keep a primary from becoming read-only.
const TRIES: usize = 3;

/// Heartbeats that are kept.
const HEARTBEATS: u64 = 100;

/// What makes commits wait, from the next one on. The timeout is 49 days; nothing here ever turns waiting off by itself.
fn waiting_for(acks: u32) -> String {
    if acks == 0 {
        return "SET GLOBAL rpl_semi_sync_source_enabled = OFF".into();
    }
    format!(
        "SET GLOBAL rpl_semi_sync_source_timeout = 4294967295, GLOBAL rpl_semi_sync_source_wait_no_replica = ON, \
         GLOBAL rpl_semi_sync_source_wait_point = AFTER_SYNC, \
         GLOBAL rpl_semi_sync_source_wait_for_replica_count = {acks}, GLOBAL rpl_semi_sync_source_enabled = ON"
    )
}

impl Executor<'_> {
    /// Stops following, makes commits wait, and only then lets anybody write.
    pub(super) async fn open(self, member: Ordinal, acks: u32) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        session.run("SET GLOBAL rpl_semi_sync_replica_enabled = OFF").await?;
        // Without a channel there is nothing to stop, and that is no error.
        session.run("STOP REPLICA").await?;
        let left = unapplied(&mut session).await?;
        if !left.is_empty() {
            // It is not discarded, and the applier goes on with it.
            session
                .run_unless(
                    "START REPLICA SQL_THREAD",
                    &[code::NOT_A_REPLICA, code::NO_CONNECTION_METADATA],
                )
                .await?;
            return Err(Failure::GuardFailed(format!("member {member} has not applied {left}")));
        }
        session.run("RESET REPLICA ALL").await?;
        session.run(&waiting_for(acks)).await?;
        self.waits_for(&mut session, member, acks).await?;
        session.run("SET GLOBAL super_read_only = OFF").await?;
        Ok(session.run("SET GLOBAL read_only = OFF").await?)
    }

    /// What was set is what the server does.
    async fn waits_for(self, session: &mut Session<'_>, member: Ordinal, acks: u32) -> Result<(), Failure> {
        let question =
            "SELECT @@GLOBAL.rpl_semi_sync_source_enabled * @@GLOBAL.rpl_semi_sync_source_wait_for_replica_count";
        let waits = session.value(question).await?;
        if waits.as_deref() == Some(acks.to_string().as_str()) {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "member {member} does not wait for {acks} acknowledgements after it was told to"
        )))
    }

    pub(super) async fn set_acks(self, member: Ordinal, acks: u32) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        Ok(session.run(&waiting_for(acks)).await?)
    }

    /// Makes a primary read-only and ends the sessions of clients. Commits that wait for acknowledgements hold the lock that this
    /// needs: then it is not done, and what was set is taken back by MySQL.
    pub(super) async fn close(self, member: Ordinal) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        for _ in 0..TRIES {
            let waiting = session.value(WAITING).await?;
            if waiting.as_deref().is_some_and(|waiting| waiting != "0") {
                return Err(Failure::NotYet(format!(
                    "commits on member {member} wait for acknowledgements"
                )));
            }
            match session.run("SET GLOBAL super_read_only = ON").await {
                Ok(()) => {
                    end_clients(&mut session).await?;
                    return stop_waiting(&mut session, member).await;
                }
                // A transaction holds a lock.
                Err(error) if error.code() == Some(code::LOCK_TIMEOUT) => end_clients(&mut session).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::NotYet(format!(
            "transactions on member {member} are not ended yet"
        )))
    }

    /// Commits one small transaction, without waiting for it. It is a row of its own: a commit that waits holds its locks.
    pub(super) async fn nudge(self, member: Ordinal) -> Result<(), Failure> {
        let reach = self.reach(member)?;
        if !self.driver.nudges.begin(&reach.pod) {
            return Ok(()); // The last one is still waiting: another tells a replica nothing new.
        }
        let (server, nudges, pod) = (reach.server.clone(), self.driver.nudges.clone(), reach.pod.clone());
        tokio::spawn(async move {
            let done = beat(&server).await;
            nudges.end(&pod);
            if let Err(error) = done {
                tracing::debug!(%error, "a heartbeat could not be committed");
            }
        });
        Ok(())
    }
}

/// Makes a read-only server commit without acknowledgements. What a replica applies would wait for them as well, for ever. Commits
/// of clients that wait would be told that they succeeded: there must be none.
pub(super) async fn stop_waiting(session: &mut Session<'_>, member: Ordinal) -> Result<(), Failure> {
    let state = "SELECT @@GLOBAL.rpl_semi_sync_source_enabled, @@GLOBAL.super_read_only";
    let sets = session.rows(state, STATEMENT).await?;
    let row = sets.into_iter().next().and_then(|rows| rows.into_iter().next());
    let on = |column| row.as_ref().and_then(|row| text(row, column)).as_deref() == Some("1");
    if !on(0) {
        return Ok(());
    }
    if !on(1) {
        return Err(Failure::GuardFailed(format!("member {member} is writable")));
    }
    let waiting = session.value(WAITING).await?;
    if waiting.as_deref() != Some("0") {
        return Err(Failure::NotYet(format!(
            "commits on member {member} wait for acknowledgements"
        )));
    }
    Ok(session.run("SET GLOBAL rpl_semi_sync_source_enabled = OFF").await?)
}

async fn beat(server: &Server) -> Result<(), crate::client::Error> {
    let mut conn = server.connect().await?;
    rows_on(&mut conn, "INSERT INTO stateward.heartbeat () VALUES ()").await?;
    let id = conn.last_insert_id().unwrap_or(0);
    if id % HEARTBEATS == 0 {
        let old = id.saturating_sub(HEARTBEATS);
        rows_on(&mut conn, &format!("DELETE FROM stateward.heartbeat WHERE id <= {old}")).await?;
    }
    Ok(())
}

/// Ends the sessions of clients.
async fn end_clients(session: &mut Session<'_>) -> Result<(), crate::client::Error> {
    let sets = session.rows(CLIENTS, STATEMENT).await?;
    for row in sets.into_iter().flatten() {
        if let Some(id) = text(&row, 0) {
            session
                .run_unless(&format!("KILL {id}"), &[code::NO_SUCH_THREAD])
                .await?;
        }
    }
    Ok(())
}
