//! Rotating passwords. For a while the old ones work too.
//!
//! A statement on accounts that waits for acknowledgements locks out everybody who wants to log in, replicas too: so it is executed
//! only while enough of them are connected.

use std::collections::BTreeMap;

use stateward_mysql::names::ACCOUNT_OPERATOR;
use stateward_mysql::world::Ordinal;
use stateward_runtime::Failure;

use super::Executor;
use crate::client::server::{Session, log_in};
use crate::client::{Error, sql};
use crate::secrets::{self, APP, ROOT};

const CONNECTED: &str = "\
SELECT VARIABLE_VALUE >= @@GLOBAL.rpl_semi_sync_source_enabled * @@GLOBAL.rpl_semi_sync_source_wait_for_replica_count \
FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_clients'";

impl Executor<'_> {
    pub(super) async fn rotate(self, primary: Ordinal, rotation: &str) -> Result<(), Failure> {
        let Some(next) = secrets::prepare_rotation(self.writer(), rotation).await? else {
            return Ok(());
        };
        if !self.is_valid(primary, &next).await? {
            let parts: Vec<String> = next
                .iter()
                .map(|(account, password)| {
                    let account = self.account(account);
                    format!(
                        "{account} IDENTIFIED BY {} RETAIN CURRENT PASSWORD",
                        sql::text(password)
                    )
                })
                .collect();
            let mut session = self.session(primary).await?;
            must_be_acknowledged(&mut session).await?;
            session.run(&format!("ALTER USER {}", parts.join(", "))).await?;
        }
        secrets::publish_rotation(self.writer(), rotation, &next).await
    }

    /// The server knows the next passwords already: all of them came in one statement.
    async fn is_valid(self, primary: Ordinal, next: &BTreeMap<String, String>) -> Result<bool, Failure> {
        let password = next.get(ACCOUNT_OPERATOR);
        let password = password.ok_or_else(|| Failure::Failed("no next password was drawn".into()))?;
        match log_in(&self.server(primary)?.target, ACCOUNT_OPERATOR, password).await {
            Ok(_) => Ok(true),
            Err(Error::Denied) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn account(self, name: &str) -> String {
        match name {
            ROOT => "'root'@'localhost'".to_owned(),
            APP => sql::account(&self.intent.database.user),
            other => sql::account(other),
        }
    }

    /// Channels get the new passwords, then the old ones end.
    pub(super) async fn discard_old(self, primary: Ordinal) -> Result<(), Failure> {
        for member in self.means.reach.keys().filter(|member| **member != primary) {
            if self.reply(*member).is_some_and(|reply| reply.channel.is_some()) {
                self.renew_channel(*member).await?;
            }
        }
        let mut accounts = secrets::own_accounts();
        accounts.push(ROOT.to_owned());
        if self.intent.app_secret.is_none() {
            accounts.push(APP.to_owned());
        }
        let parts: Vec<String> = accounts
            .iter()
            .map(|account| format!("{} DISCARD OLD PASSWORD", self.account(account)))
            .collect();
        let mut session = self.session(primary).await?;
        must_be_acknowledged(&mut session).await?;
        session.run(&format!("ALTER USER {}", parts.join(", "))).await?;
        drop(session);
        secrets::discard_old(self.writer()).await
    }
}

async fn must_be_acknowledged(session: &mut Session<'_>) -> Result<(), Failure> {
    if session.value(CONNECTED).await?.as_deref() == Some("1") {
        return Ok(());
    }
    Err(Failure::NotYet(
        "too few replicas are connected to acknowledge a change of accounts".into(),
    ))
}
