//! Purging binlogs that nobody needs.

use stateward_mysql::GtidSet;
use stateward_mysql::world::Ordinal;
use stateward_runtime::Failure;

use super::Executor;
use crate::client::server::named;
use crate::client::{STATEMENT, sql};

impl Executor<'_> {
    /// Purges the binlogs that hold nothing of `keep`, oldest first. The one that is being written stays.
    pub(super) async fn purge(self, member: Ordinal, keep: &GtidSet) -> Result<(), Failure> {
        let mut session = self.session(member).await?;
        let sets = session.rows("SHOW BINARY LOGS", STATEMENT).await?;
        let files: Vec<String> = sets.iter().flatten().filter_map(|row| named(row, "Log_name")).collect();
        let mut purge_to = None;
        // A binlog begins with what all before it hold.
        for file in files.iter().skip(1) {
            let before = self.before(&mut session, file).await?;
            if !before.is_disjoint(keep) {
                break;
            }
            purge_to = Some(file);
        }
        if let Some(file) = purge_to {
            session
                .run(&format!("PURGE BINARY LOGS TO {}", sql::text(file)))
                .await?;
        }
        Ok(())
    }

    /// What the binlogs before this one hold, as its first events say.
    async fn before(self, session: &mut crate::client::server::Session<'_>, file: &str) -> Result<GtidSet, Failure> {
        let question = format!("SHOW BINLOG EVENTS IN {} LIMIT 3", sql::text(file));
        let sets = session.rows(&question, STATEMENT).await?;
        let previous = sets
            .iter()
            .flatten()
            .find(|row| named(row, "Event_type").as_deref() == Some("Previous_gtids"));
        let text = previous.and_then(|row| named(row, "Info"));
        let text = text.ok_or_else(|| Failure::Failed(format!("{file} does not say what is before it")))?;
        text.parse()
            .map_err(|error| Failure::Failed(format!("{file} begins with what cannot be read: {error}")))
    }
}
