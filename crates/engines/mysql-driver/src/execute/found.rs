//! The first transactions of a cluster.

use stateward_mysql::api::SIZES;
use stateward_mysql::names::{self, ACCOUNT_CLONE};
use stateward_mysql::world::Ordinal;
use stateward_runtime::Failure;

use super::Executor;
use crate::client::server::Session;
use crate::client::{Error, code, sql};

impl Executor<'_> {
    /// Accounts, database, and last `stateward.cluster`. Meanwhile only Stateward's own account can write, and nobody else
    /// afterwards.
    pub(super) async fn found(self, member: Ordinal) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        let uid = session.value("SELECT uid FROM stateward.cluster WHERE id = 1").await;
        match uid {
            Ok(Some(uid)) if uid == self.intent.uid.0 => return Ok(session.run(SEAL).await?),
            Ok(Some(_)) => {
                let why = format!("the data of member {member} is of another MySQLCluster");
                return Err(Failure::GuardFailed(why));
            }
            Ok(None) => {}
            Err(error) if matches!(error.code(), Some(code::BAD_DB | code::NO_SUCH_TABLE)) => {}
            Err(error) => return Err(error.into()),
        }
        let statements = self.first_statements()?;
        session.run("SET GLOBAL super_read_only = OFF").await?;
        let written = write(&mut session, &statements).await;
        session.run(SEAL).await?;
        Ok(written?)
    }

    fn first_statements(self) -> Result<Vec<String>, Failure> {
        let members = 0..u32::try_from(*SIZES.end()).unwrap_or(0);
        let mut accounts = Vec::new();
        let mut names = Vec::new();
        for member in members.map(Ordinal) {
            let user = names::replication_account(member);
            let password = sql::text(&self.password(&user)?);
            accounts.push(format!("{} IDENTIFIED BY {password}", sql::account(&user)));
            names.push(sql::account(&user));
        }
        let clone = sql::account(ACCOUNT_CLONE);
        let clone_password = sql::text(&self.password(ACCOUNT_CLONE)?);
        let (database, app) = (&self.intent.database.name, sql::account(&self.intent.database.user));
        let app_password = self.passwords()?.app.clone();
        let app_password = app_password
            .ok_or_else(|| Failure::GuardFailed("the password of the application's account is not there".into()))?;
        Ok(vec![
            format!("CREATE USER IF NOT EXISTS {}", accounts.join(", ")),
            format!("GRANT REPLICATION SLAVE ON *.* TO {}", names.join(", ")),
            format!("CREATE USER IF NOT EXISTS {clone} IDENTIFIED BY {clone_password}"),
            format!("GRANT BACKUP_ADMIN ON *.* TO {clone}"),
            format!("CREATE DATABASE IF NOT EXISTS {}", sql::name(database)),
            format!(
                "CREATE USER IF NOT EXISTS {app} IDENTIFIED BY {}",
                sql::text(&app_password)
            ),
            format!("GRANT ALL ON {}.* TO {app}", sql::granted(database)),
            "CREATE DATABASE IF NOT EXISTS stateward".to_owned(),
            "CREATE TABLE IF NOT EXISTS stateward.heartbeat (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
             at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)) ENGINE = InnoDB"
                .to_owned(),
            "CREATE TABLE IF NOT EXISTS stateward.cluster (id TINYINT UNSIGNED PRIMARY KEY, uid VARCHAR(64) NOT NULL) \
             ENGINE = InnoDB"
                .to_owned(),
            format!(
                "INSERT INTO stateward.cluster (id, uid) VALUES (1, {})",
                sql::text(&self.intent.uid.0)
            ),
        ])
    }
}

const SEAL: &str = "SET GLOBAL super_read_only = ON";

async fn write(session: &mut Session<'_>, statements: &[String]) -> Result<(), Error> {
    for statement in statements {
        session.run(statement).await?;
    }
    Ok(())
}
