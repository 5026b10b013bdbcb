//! Cloning: the recipient copies the donor's data over its own, and restarts by itself.

use std::time::Duration;

use stateward_mysql::names::{ACCOUNT_CLONE, PORT};
use stateward_mysql::world::Ordinal;
use stateward_runtime::Failure;
use tokio::time::timeout;

use super::Executor;
use crate::client::server::rows_on;
use crate::client::{Error, sql};
use crate::tls;

/// A clone that cannot begin says so within this time.
const BEGINNING: Duration = Duration::from_secs(1);

const RUNNING: &str = "SELECT COUNT(*) FROM performance_schema.clone_status WHERE STATE = 'In Progress'";

impl Executor<'_> {
    pub(super) async fn clone_from(self, member: Ordinal, donor: Ordinal) -> Result<(), Failure> {
        let password = sql::text(&self.password(ACCOUNT_CLONE)?);
        let host = self.intent.host(donor);
        let mut session = self.session(member).await?;
        if session.value(RUNNING).await?.as_deref() != Some("0") {
            return Ok(());
        }
        session.run("SET GLOBAL rpl_semi_sync_replica_enabled = OFF").await?;
        session.run("STOP REPLICA").await?;
        let list = sql::text(&format!("{host}:{PORT}"));
        session
            .run(&format!("SET GLOBAL clone_valid_donor_list = {list}"))
            .await?;
        let encryption = match tls::channel_ca(self.intent) {
            Some(ca) => {
                session
                    .run(&format!("SET GLOBAL clone_ssl_ca = {}", sql::text(&ca)))
                    .await?;
                "REQUIRE SSL"
            }
            None => "REQUIRE NO SSL",
        };
        // A clone drops the databases that it replaces, which super_read_only forbids. read_only stays: no application can write.
        session.run("SET GLOBAL super_read_only = OFF").await?;
        drop(session);
        let account = format!("{}@{}:{PORT}", sql::text(ACCOUNT_CLONE), sql::text(&host));
        let statement = format!("CLONE INSTANCE FROM {account} IDENTIFIED BY {password} {encryption}");
        let server = self.reach(member)?.server.clone();
        // The server goes on with it whatever becomes of this session, and says in its tables how far it is.
        let work = tokio::spawn(async move {
            let mut conn = server.connect().await?;
            rows_on(&mut conn, &statement).await.map(drop)
        });
        match timeout(BEGINNING, work).await {
            Ok(Ok(Err(Error::Server { code, message }))) => {
                let mut session = self.session(member).await?;
                session.run("SET GLOBAL super_read_only = ON").await?;
                Err(Failure::Trouble(stateward_core::kind::Trouble {
                    reason: "CloneFailed",
                    message: format!("cloning member {donor} to member {member} failed: MySQL error {code}: {message}"),
                }))
            }
            // It has begun; the connection ends when the server restarts.
            _ => Ok(()),
        }
    }
}
