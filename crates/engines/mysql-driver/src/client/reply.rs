//! What a server says of itself, asked in one round trip; and its accounts, in another one that may fail.
//!
//! The order of the questions matters (see `stateward_mysql::world`): the receiver's state is read before the GTID sets, and
//! `gtid_owned` before `gtid_executed`, so that a transaction which is committed in between is in one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use stateward_core::Uid;
use stateward_mysql::GtidSet;
use stateward_mysql::agent::boot_of;
use stateward_mysql::api::MySQLVersion;
use stateward_mysql::gtid::parse_uuid;
use stateward_mysql::world::{Channel, CloneState, Ordinal, Process, Receiver, Reply, SourceState};

use super::server::{Rows, Session, named, text};
use super::{ASK, Error, code, sql};

/// The replica wants binlogs that its source has purged.
const PURGED: [&str; 2] = ["13114", "13117"];

const QUESTIONS: &str = "\
SELECT SERVICE_STATE FROM performance_schema.replication_connection_status WHERE CHANNEL_NAME = '';\
SHOW REPLICA STATUS;\
SHOW REPLICAS;\
SELECT VARIABLE_NAME, VARIABLE_VALUE FROM performance_schema.global_variables WHERE VARIABLE_NAME IN \
('server_uuid', 'pid_file', 'server_id', 'version', 'read_only', 'super_read_only', 'rpl_semi_sync_source_enabled', \
'rpl_semi_sync_source_wait_for_replica_count', 'rpl_semi_sync_replica_enabled');\
SELECT VARIABLE_NAME, VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME IN \
('Rpl_semi_sync_source_status', 'Rpl_semi_sync_source_wait_sessions', 'Rpl_semi_sync_replica_status');\
SELECT STATE, SOURCE, ERROR_NO, ERROR_MESSAGE FROM performance_schema.clone_status;\
SELECT SUM(DATA), SUM(ESTIMATE) FROM performance_schema.clone_progress;\
SELECT @@GLOBAL.gtid_owned;\
SELECT RECEIVED_TRANSACTION_SET FROM performance_schema.replication_connection_status WHERE CHANNEL_NAME = '';\
SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged";

/// Statements on accounts lock what these questions read. While such a statement waits for acknowledgements there is no answer.
const ACCOUNTS: &str = "\
SELECT User, account_locked = 'Y', COALESCE(JSON_CONTAINS_PATH(User_attributes, 'one', '$.additional_password'), 0) \
FROM mysql.user WHERE account_locked = 'Y' OR User_attributes IS NOT NULL;\
SELECT uid FROM stateward.cluster WHERE id = 1";

const AHEAD: &str = "SELECT @@GLOBAL.gtid_owned; SELECT @@GLOBAL.gtid_executed";

/// What is kept in tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accounts {
    locked: BTreeSet<Ordinal>,
    old_passwords: bool,
    cluster: Option<Uid>,
}

/// Asks a server. `known`: what its accounts were last, of this very process.
pub(crate) async fn ask(session: &mut Session<'_>, known: Option<&(Process, Accounts)>) -> Result<Reply, Error> {
    let sets = session.rows(QUESTIONS, ASK).await?;
    let mut reply = reply(&sets)?;
    let known = known.filter(|(process, _)| *process == reply.process);
    let accounts = match (accounts(session).await, known) {
        (Ok(accounts), _) => accounts,
        (Err(error), Some((_, accounts))) if error.code() == Some(code::LOCK_TIMEOUT) => accounts.clone(),
        (Err(error), _) => return Err(error),
    };
    reply.locked = accounts.locked;
    reply.old_passwords = accounts.old_passwords;
    reply.cluster = accounts.cluster;
    Ok(reply)
}

/// What of a reply is kept in tables.
pub(crate) fn accounts_of(reply: &Reply) -> (Process, Accounts) {
    let accounts = Accounts {
        locked: reply.locked.clone(),
        old_passwords: reply.old_passwords,
        cluster: reply.cluster.clone(),
    };
    (reply.process.clone(), accounts)
}

/// The executed and owned GTIDs of a server.
pub(crate) async fn ahead(session: &mut Session<'_>) -> Result<GtidSet, Error> {
    let sets = session.rows(AHEAD, ASK).await?;
    let owned = owned(&first(&sets, 0).unwrap_or_default())?;
    Ok(gtids(&first(&sets, 1).unwrap_or_default())?.union(&owned))
}

async fn accounts(session: &mut Session<'_>) -> Result<Accounts, Error> {
    let (locked, cluster) = match session.rows(ACCOUNTS, ASK).await {
        Ok(sets) => {
            let cluster = first(&sets, 1);
            (sets.into_iter().next().unwrap_or_default(), cluster)
        }
        // A server that is empty has no such table.
        Err(error) if matches!(error.code(), Some(code::BAD_DB | code::NO_SUCH_TABLE)) => {
            let (only, _) = ACCOUNTS.split_once(';').unwrap_or((ACCOUNTS, ""));
            (
                session.rows(only, ASK).await?.into_iter().next().unwrap_or_default(),
                None,
            )
        }
        Err(error) => return Err(error),
    };
    let mut accounts = Accounts {
        cluster: cluster.map(Uid),
        ..Accounts::default()
    };
    for row in &locked {
        let is = |column| text(row, column).as_deref() == Some("1");
        if is(1) {
            accounts.locked.extend(text(row, 0).and_then(|user| sql::member(&user)));
        }
        accounts.old_passwords |= is(2);
    }
    Ok(accounts)
}

fn first(sets: &[Rows], set: usize) -> Option<String> {
    text(sets.get(set)?.first()?, 0)
}

fn unreadable(what: impl ToString) -> Error {
    Error::Unreadable(what.to_string())
}

fn gtids(text: &str) -> Result<GtidSet, Error> {
    text.parse().map_err(unreadable)
}

/// `gtid_owned` of the server: each number is followed by `#` and the thread that owns it.
fn owned(text: &str) -> Result<GtidSet, Error> {
    let mut plain = String::with_capacity(text.len());
    let mut in_thread = false;
    for character in text.chars() {
        in_thread = match character {
            '#' => true,
            digit if digit.is_ascii_digit() => in_thread,
            _ => false,
        };
        if !in_thread {
            plain.push(character);
        }
    }
    gtids(&plain)
}

fn pairs(rows: Option<&Rows>) -> BTreeMap<String, String> {
    let rows = rows.into_iter().flatten();
    rows.filter_map(|row| Some((text(row, 0)?, text(row, 1)?))).collect()
}

fn reply(sets: &[Rows]) -> Result<Reply, Error> {
    let variables = pairs(sets.get(3));
    let status = pairs(sets.get(4));
    let variable = |name: &str| variables.get(name).map_or("", String::as_str);
    let on = |values: &BTreeMap<String, String>, name: &str| values.get(name).is_some_and(|value| value == "ON");
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    let executed = sets.get(9).and_then(|rows| rows.first());
    let executed = executed.ok_or_else(|| unreadable("it has no gtid_executed"))?;
    let version = MySQLVersion::from_str(variable("version")).map_err(unreadable)?;
    let uuid = parse_uuid(variable("server_uuid")).ok_or_else(|| unreadable("it has no server_uuid"))?;
    let connected = sets.get(2).into_iter().flatten();
    let mut reply = Reply {
        process: Process {
            uuid,
            boot: boot_of(variable("pid_file")).to_owned(),
        },
        server_id: number(variable("server_id")),
        version,
        read_only: on(&variables, "read_only") && on(&variables, "super_read_only"),
        executed: gtids(&text(executed, 0).unwrap_or_default())?,
        purged: gtids(&text(executed, 1).unwrap_or_default())?,
        owned: owned(&first(sets, 7).unwrap_or_default())?,
        source: SourceState {
            enabled: on(&variables, "rpl_semi_sync_source_enabled"),
            acks: number(variable("rpl_semi_sync_source_wait_for_replica_count")),
            status: on(&status, "Rpl_semi_sync_source_status"),
            waiting: status
                .get("Rpl_semi_sync_source_wait_sessions")
                .map_or(0, |text| number(text)),
            connected: connected
                .filter_map(|row| named(row, "Server_Id")?.parse().ok())
                .collect(),
        },
        acknowledges: on(&variables, "rpl_semi_sync_replica_enabled"),
        acknowledging: on(&status, "Rpl_semi_sync_replica_status"),
        ..Reply::default()
    };
    reply.channel = channel(sets)?;
    reply.clone = clone(sets);
    Ok(reply)
}

/// The default channel.
fn channel(sets: &[Rows]) -> Result<Option<Channel>, Error> {
    let mut rows = sets.get(1).into_iter().flatten();
    let Some(row) = rows.find(|row| named(row, "Channel_Name").is_none_or(|name| name.is_empty())) else {
        return Ok(None);
    };
    let field = |name: &str| named(row, name).unwrap_or_default();
    let error = |number: &str, message: &str| {
        let wrong = field(number) != "0";
        wrong.then(|| field(message)).filter(|message| !message.is_empty())
    };
    let receiver = match first(sets, 0).as_deref() {
        Some("ON") => Receiver::Running,
        Some("OFF") => Receiver::Stopped,
        // It may connect at any moment. So may one whose state is not known.
        _ => Receiver::Connecting,
    };
    let receiver_error = error("Last_IO_Errno", "Last_IO_Error");
    let purged = receiver_error
        .as_ref()
        .is_some_and(|message| message.contains("purged"));
    Ok(Some(Channel {
        host: field("Source_Host"),
        receiver,
        applier: field("Replica_SQL_Running") == "Yes",
        retrieved: gtids(&first(sets, 8).unwrap_or_default())?,
        lag: named(row, "Seconds_Behind_Source").and_then(|lag| lag.parse().ok()),
        purged: purged && PURGED.contains(&field("Last_IO_Errno").as_str()),
        receiver_error,
        applier_error: error("Last_SQL_Errno", "Last_SQL_Error"),
    }))
}

fn clone(sets: &[Rows]) -> Option<CloneState> {
    let row = sets.get(5)?.first()?;
    let state = text(row, 0)?;
    let share = sets.get(6).and_then(|rows| rows.first()).and_then(|row| {
        let done: f64 = text(row, 0)?.parse().ok()?;
        let all: f64 = text(row, 1)?.parse().ok()?;
        (all > 0.0).then(|| (done / all * 100.0).clamp(0.0, 100.0))
    });
    let source = text(row, 1).unwrap_or_default();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is from 0 to 100"
    )]
    let percent = share.unwrap_or(0.0) as u32;
    Some(CloneState {
        running: state == "In Progress",
        percent,
        error: (state == "Failed").then(|| text(row, 3).unwrap_or_default()),
        donor: source
            .rsplit_once(':')
            .map_or(source.clone(), |(host, _)| host.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_gtids_name_threads() {
        let uuid = 0x3e11_fa47_71ca_11e1_9e33_c80a_a942_9562;
        let text = "3e11fa47-71ca-11e1-9e33-c80aa9429562:12#14:13#7";
        assert_eq!(owned(text).expect("a set"), GtidSet::range(uuid, 12, 13));
        assert!(owned("").expect("a set").is_empty());
        let tagged = owned("3e11fa47-71ca-11e1-9e33-c80aa9429562:tag1:12#14").expect("a set");
        assert_eq!(tagged.to_string(), "3e11fa47-71ca-11e1-9e33-c80aa9429562:tag1:12");
    }
}
