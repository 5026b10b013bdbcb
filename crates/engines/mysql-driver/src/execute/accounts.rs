//! Locking a member's replication account at the primary. It is not in the binlog: it holds for this server only, and waits for no
//! acknowledgement.

use stateward_mysql::names;
use stateward_mysql::world::Ordinal;
use stateward_runtime::Failure;

use super::Executor;
use crate::client::server::{Session, text};
use crate::client::{Error, STATEMENT, code, sql};

impl Executor<'_> {
    /// First nobody logs in any more, then who is in is thrown out.
    pub(super) async fn expel(self, primary: Ordinal, member: Ordinal) -> Result<(), Failure> {
        let mut session = self.session(primary).await?;
        lock(&mut session, member, "LOCK").await?;
        let user = sql::text(&names::replication_account(member));
        let question = format!("SELECT ID FROM performance_schema.processlist WHERE USER = {user}");
        let sets = session.rows(&question, STATEMENT).await?;
        for row in sets.into_iter().flatten() {
            if let Some(id) = text(&row, 0) {
                session
                    .run_unless(&format!("KILL {id}"), &[code::NO_SUCH_THREAD])
                    .await?;
            }
        }
        Ok(())
    }

    pub(super) async fn readmit(self, primary: Ordinal, member: Ordinal) -> Result<(), Failure> {
        let mut session = self.session(primary).await?;
        Ok(lock(&mut session, member, "UNLOCK").await?)
    }
}

async fn lock(session: &mut Session<'_>, member: Ordinal, word: &str) -> Result<(), Error> {
    let account = sql::replication_account(member);
    // A server that is read-only is opened for Stateward's account alone.
    let sealed = session.value("SELECT @@GLOBAL.super_read_only").await?.as_deref() == Some("1");
    if sealed {
        session.run("SET GLOBAL super_read_only = OFF").await?;
    }
    session.run("SET SESSION sql_log_bin = OFF").await?;
    let locked = session
        .run_unless(&format!("ALTER USER {account} ACCOUNT {word}"), &[code::NO_SUCH_USER])
        .await;
    let logged = session.run("SET SESSION sql_log_bin = ON").await;
    if sealed {
        session.run("SET GLOBAL super_read_only = ON").await?;
    }
    locked.and(logged)
}
