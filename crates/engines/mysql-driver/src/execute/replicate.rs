//! Following a source, and stopping to.
//!
//! An acknowledgement may lie in a relay log only. MySQL deletes relay logs when the source changes while the applier is stopped, and
//! keeps them while it runs: so it always runs.

use stateward_mysql::names::{self, PORT};
use stateward_mysql::world::Ordinal;
use stateward_runtime::Failure;

use super::Executor;
use super::open::stop_waiting;
use crate::client::server::{Session, text};
use crate::client::{Error, STATEMENT, code, sql};
use crate::tls;

/// There is no channel: nothing is to be stopped or started.
const NO_CHANNEL: [u16; 2] = [code::NOT_A_REPLICA, code::NO_CONNECTION_METADATA];

/// The default channel as it is configured, and how it runs.
const CHANNEL: &str = "\
SELECT c.HOST, c.USER, c.AUTO_POSITION, s.SERVICE_STATE, a.SERVICE_STATE, @@GLOBAL.rpl_semi_sync_replica_enabled \
FROM performance_schema.replication_connection_configuration c \
JOIN performance_schema.replication_connection_status s USING (CHANNEL_NAME) \
JOIN performance_schema.replication_applier_status a USING (CHANNEL_NAME) \
WHERE c.CHANNEL_NAME = ''";

/// What is retrieved and not executed.
const UNAPPLIED: &str = "\
SELECT GTID_SUBTRACT(RECEIVED_TRANSACTION_SET, @@GLOBAL.gtid_executed) \
FROM performance_schema.replication_connection_status WHERE CHANNEL_NAME = ''";

struct Configured {
    host: String,
    user: String,
    auto_position: bool,
    receives: bool,
    applies: bool,
    acknowledges: bool,
}

async fn configured(session: &mut Session<'_>) -> Result<Option<Configured>, Error> {
    let sets = session.rows(CHANNEL, STATEMENT).await?;
    let row = sets.into_iter().next().and_then(|rows| rows.into_iter().next());
    Ok(row.map(|row| {
        let field = |column| text(&row, column).unwrap_or_default();
        let on = |column| matches!(field(column).as_str(), "ON" | "1");
        Configured {
            host: field(0),
            user: field(1),
            auto_position: on(2),
            receives: on(3),
            applies: on(4),
            acknowledges: on(5),
        }
    }))
}

/// What is retrieved and not executed; empty without a channel.
pub(super) async fn unapplied(session: &mut Session<'_>) -> Result<String, Error> {
    Ok(session.value(UNAPPLIED).await?.unwrap_or_default())
}

impl Executor<'_> {
    pub(super) async fn replicate(self, member: Ordinal, source: Ordinal, acknowledge: bool) -> Result<(), Failure> {
        let host = self.intent.host(source);
        let user = names::replication_account(member);
        let mut session = self.session(member).await?;
        let before = configured(&mut session).await?;
        if let Some(before) = &before
            && (&before.host, &before.user) == (&host, &user)
            && before.auto_position
            && before.receives
            && before.applies
            && before.acknowledges == acknowledge
        {
            return Ok(());
        }
        if before.is_some() {
            session.run("STOP REPLICA IO_THREAD").await?;
            self.let_apply(&mut session).await?;
        }
        stop_waiting(&mut session, member).await?;
        let word = if acknowledge { "ON" } else { "OFF" };
        session
            .run(&format!("SET GLOBAL rpl_semi_sync_replica_enabled = {word}"))
            .await?;
        let mut options = self.options(&host, &user)?;
        if before.as_ref().is_none_or(|before| !before.auto_position) {
            if before.is_some() {
                // Both threads must be stopped for this, once, in a member that was adopted.
                let left = unapplied(&mut session).await?;
                if !left.is_empty() {
                    return Err(Failure::NotYet(format!("member {member} has not applied {left}")));
                }
                session.run("STOP REPLICA").await?;
            }
            options.push("SOURCE_AUTO_POSITION = 1".into());
        }
        session
            .run(&format!("CHANGE REPLICATION SOURCE TO {}", options.join(", ")))
            .await?;
        Ok(session.run("START REPLICA").await?)
    }

    fn options(self, host: &str, user: &str) -> Result<Vec<String>, Failure> {
        let mut options = vec![
            format!("SOURCE_HOST = {}", sql::text(host)),
            format!("SOURCE_PORT = {PORT}"),
            format!("SOURCE_USER = {}", sql::text(user)),
            format!("SOURCE_PASSWORD = {}", sql::text(&self.password(user)?)),
            "SOURCE_CONNECT_RETRY = 1".into(),
            // Until it is stopped.
            "SOURCE_RETRY_COUNT = 0".into(),
            "SOURCE_HEARTBEAT_PERIOD = 2".into(),
        ];
        match tls::channel_ca(self.intent) {
            Some(ca) => options.extend([
                "SOURCE_SSL = 1".into(),
                format!("SOURCE_SSL_CA = {}", sql::text(&ca)),
                "SOURCE_SSL_VERIFY_SERVER_CERT = 1".into(),
            ]),
            None => options.extend([
                "SOURCE_SSL = 0".into(),
                "SOURCE_SSL_CA = ''".into(),
                "SOURCE_SSL_VERIFY_SERVER_CERT = 0".into(),
                "GET_SOURCE_PUBLIC_KEY = 1".into(),
            ]),
        }
        Ok(options)
    }

    /// The applier runs, or has nothing left to do.
    async fn let_apply(self, session: &mut Session<'_>) -> Result<(), Failure> {
        session.run_unless("START REPLICA SQL_THREAD", &NO_CHANNEL).await?;
        let applies = configured(session).await?.is_some_and(|now| now.applies);
        let left = if applies {
            String::new()
        } else {
            unapplied(session).await?
        };
        if left.is_empty() {
            return Ok(());
        }
        Err(Failure::NotYet(format!("the applier stops and has not applied {left}")))
    }

    /// The variable comes first: a receiver that is started again by anybody does not acknowledge.
    pub(super) async fn stop_receiver(self, member: Ordinal) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        session.run("SET GLOBAL rpl_semi_sync_replica_enabled = OFF").await?;
        session.run_unless("STOP REPLICA IO_THREAD", &NO_CHANNEL).await?;
        Ok(session.run_unless("START REPLICA SQL_THREAD", &NO_CHANNEL).await?)
    }

    /// Gives a channel the password of its account, without starting what does not run.
    pub(super) async fn renew_channel(self, member: Ordinal) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        let Some(before) = configured(&mut session).await? else {
            return Ok(());
        };
        let password = sql::text(&self.password(&names::replication_account(member))?);
        if before.user != names::replication_account(member) {
            return Ok(());
        }
        session.run("STOP REPLICA IO_THREAD").await?;
        self.let_apply(&mut session).await?;
        session
            .run(&format!("CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD = {password}"))
            .await?;
        if before.receives {
            session.run("START REPLICA IO_THREAD").await?;
        }
        Ok(())
    }
}
