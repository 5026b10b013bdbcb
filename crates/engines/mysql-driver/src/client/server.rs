//! One server: statements on one session at a time, each bounded.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use stateward_mysql::names::{self, ACCOUNT_OPERATOR};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use super::{CONNECT, Error, STATEMENT, Target, port};

/// The rows of one statement.
pub(crate) type Rows = Vec<Row>;

/// A server. Clones of the pointer share its session.
pub(crate) struct Server {
    pub(crate) target: Target,
    session: Mutex<Option<Conn>>,
}

/// The one session of a server, for several statements in a row.
pub(crate) struct Session<'a> {
    target: &'a Target,
    slot: MutexGuard<'a, Option<Conn>>,
}

impl Server {
    pub(crate) fn new(target: Target) -> Arc<Self> {
        Arc::new(Self {
            target,
            session: Mutex::new(None),
        })
    }

    /// The session, once nobody else uses it.
    pub(crate) async fn session(&self) -> Session<'_> {
        Session {
            target: &self.target,
            slot: self.session.lock().await,
        }
    }

    /// A session of its own, for what takes long.
    pub(crate) async fn connect(&self) -> Result<Conn, Error> {
        connect(&self.target).await
    }
}

/// A new connection of Stateward's account.
pub(crate) async fn connect(target: &Target) -> Result<Conn, Error> {
    let first = log_in(target, ACCOUNT_OPERATOR, &target.password).await;
    match (&first, &target.old_password) {
        (Err(Error::Denied), Some(old)) => log_in(target, ACCOUNT_OPERATOR, old).await,
        _ => first,
    }
}

/// A new connection of any account that may log in from anywhere.
pub(crate) async fn log_in(target: &Target, user: &str, password: &str) -> Result<Conn, Error> {
    let opts = target.opts(user, password, port(names::ADMIN_PORT));
    match timeout(CONNECT, Conn::new(opts)).await {
        Ok(conn) => Ok(conn?),
        Err(_) => Err(Error::TimedOut),
    }
}

/// Executes statements on a connection, and returns the rows of each.
pub(crate) async fn rows_on(conn: &mut Conn, sql: &str) -> Result<Vec<Rows>, Error> {
    let mut result = conn.query_iter(sql).await?;
    let mut sets = Vec::new();
    // A statement without rows is a set without columns.
    loop {
        sets.push(result.collect::<Row>().await?);
        if result.is_empty() {
            // A statement that fails after one that succeeded leaves its error behind, for whoever uses the connection next.
            result.drop_result().await?;
            return Ok(sets);
        }
    }
}

impl Session<'_> {
    /// Executes a statement that changes little.
    pub(crate) async fn run(&mut self, sql: &str) -> Result<(), Error> {
        self.rows(sql, STATEMENT).await.map(drop)
    }

    /// The same where some refusals are as good as success.
    pub(crate) async fn run_unless(&mut self, sql: &str, fine: &[u16]) -> Result<(), Error> {
        match self.run(sql).await {
            Err(Error::Server { code, .. }) if fine.contains(&code) => Ok(()),
            done => done,
        }
    }

    /// Executes statements within a time, and returns the rows of each. What is given up is ended at the server too, so that it
    /// is not executed later.
    pub(crate) async fn rows(&mut self, sql: &str, limit: Duration) -> Result<Vec<Rows>, Error> {
        let mut conn = match self.slot.take() {
            Some(conn) => conn,
            None => connect(self.target).await?,
        };
        let id = conn.id();
        let Ok(result) = timeout(limit, rows_on(&mut conn, sql)).await else {
            drop(conn);
            self.kill(id).await;
            return Err(Error::TimedOut);
        };
        let is_good = result.as_ref().err().is_none_or(Error::keeps_connection);
        if is_good {
            *self.slot = Some(conn);
        }
        result
    }

    /// The one value of a question.
    pub(crate) async fn value(&mut self, sql: &str) -> Result<Option<String>, Error> {
        let sets = self.rows(sql, STATEMENT).await?;
        let row = sets.into_iter().next().and_then(|rows| rows.into_iter().next());
        Ok(row.and_then(|row| text(&row, 0)))
    }

    /// Ends a session of ours, as far as the server can be reached.
    async fn kill(&mut self, id: u32) {
        let ended = async {
            let mut conn = connect(self.target).await?;
            rows_on(&mut conn, &format!("KILL {id}")).await?;
            Ok::<_, Error>(conn)
        };
        match timeout(CONNECT, ended).await {
            Ok(Ok(conn)) => *self.slot = Some(conn),
            Ok(Err(error)) => tracing::debug!(%error, "a session that was given up could not be ended"),
            Err(_) => tracing::debug!("a session that was given up could not be ended in time"),
        }
    }
}

/// A value of a row as text. `None`: NULL, or no such column.
pub(crate) fn text(row: &Row, column: usize) -> Option<String> {
    match row.as_ref(column)? {
        mysql_async::Value::NULL => None,
        mysql_async::Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        mysql_async::Value::Int(number) => Some(number.to_string()),
        mysql_async::Value::UInt(number) => Some(number.to_string()),
        mysql_async::Value::Float(number) => Some(number.to_string()),
        mysql_async::Value::Double(number) => Some(number.to_string()),
        mysql_async::Value::Date(..) | mysql_async::Value::Time(..) => None,
    }
}

/// The same by the column's name.
pub(crate) fn named(row: &Row, column: &str) -> Option<String> {
    let at = row
        .columns_ref()
        .iter()
        .position(|known| known.name_str().eq_ignore_ascii_case(column))?;
    text(row, at)
}
