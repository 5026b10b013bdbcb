//! How mysqld is started: sealed. What a user or an earlier life of the server set cannot change that, because arguments come
//! after every file, and variables that were persisted are not read.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use stateward_mysql::{layout, names};

/// What the environment says.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pod: String,
    domain: String,
    address: IpAddr,
    server_id: u32,
}

/// The environment does not say what it must.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A variable is not set.
    #[error("{0} is not set: this command is for the pods of a MySQLCluster")]
    Missing(&'static str),
    /// A variable has a value that cannot be used.
    #[error("{0} is \"{1}\", which is not as expected")]
    Malformed(&'static str, String),
}

fn variable(name: &'static str) -> Result<String, SettingsError> {
    let value = env::var(name).ok().filter(|value| !value.is_empty());
    value.ok_or(SettingsError::Missing(name))
}

impl Settings {
    pub(super) fn from_environment() -> Result<Self, SettingsError> {
        let malformed = |name, value: &str| SettingsError::Malformed(name, value.to_owned());
        let (pod, domain) = (variable(layout::ENV_POD)?, variable(layout::ENV_DOMAIN)?);
        let address = variable(layout::ENV_ADDRESS)?;
        let base = variable(layout::ENV_SERVER_ID_BASE)?;
        let ordinal = pod.rsplit('-').next().and_then(|number| number.parse::<u32>().ok());
        let ordinal = ordinal.ok_or_else(|| malformed(layout::ENV_POD, &pod))?;
        let parsed: u32 = base.parse().map_err(|_| malformed(layout::ENV_SERVER_ID_BASE, &base))?;
        let server_id = parsed.checked_add(ordinal);
        Ok(Self {
            address: address.parse().map_err(|_| malformed(layout::ENV_ADDRESS, &address))?,
            server_id: server_id.ok_or_else(|| malformed(layout::ENV_SERVER_ID_BASE, &base))?,
            pod,
            domain,
        })
    }

    /// The arguments that make a server do nothing until it is told: it is read-only, follows nobody and acknowledges nothing.
    pub(super) fn sealed(&self, my_cnf: &Path, boot: &str) -> Vec<OsString> {
        let fixed = [
            ("datadir", layout::DATA),
            ("socket", layout::SOCKET),
            ("tmpdir", layout::TEMPORARY),
            ("persisted-globals-load", "OFF"),
            ("super-read-only", "ON"),
            ("skip-replica-start", "ON"),
            ("plugin-load-add", "clone=mysql_clone.so"),
            ("plugin-load-add", "rpl_semi_sync_source=semisync_source.so"),
            ("plugin-load-add", "rpl_semi_sync_replica=semisync_replica.so"),
            ("clone", "FORCE_PLUS_PERMANENT"),
            ("rpl-semi-sync-source", "FORCE_PLUS_PERMANENT"),
            ("rpl-semi-sync-replica", "FORCE_PLUS_PERMANENT"),
            ("rpl-semi-sync-replica-enabled", "OFF"),
            ("rpl-semi-sync-source-enabled", "OFF"),
            // Waiting never turns into not waiting by itself: 49 days, and also while no replica is connected.
            ("rpl-semi-sync-source-timeout", "4294967295"),
            ("rpl-semi-sync-source-wait-no-replica", "ON"),
            ("rpl-semi-sync-source-wait-point", "AFTER_SYNC"),
            ("gtid-mode", "ON"),
            ("enforce-gtid-consistency", "ON"),
            ("log-bin", "binlog"),
            ("log-replica-updates", "ON"),
            ("replica-preserve-commit-order", "ON"),
            ("sync-binlog", "1"),
            ("innodb-flush-log-at-trx-commit", "1"),
            // An acknowledgement may lie in a relay log only: it is on disk before it is given, and never thrown away.
            ("sync-relay-log", "1"),
            ("relay-log-recovery", "OFF"),
            // Binlogs are purged when every member has them.
            ("binlog-expire-logs-auto-purge", "OFF"),
            ("mysqlx", "OFF"),
        ];
        let own = [
            ("pid-file", format!("{}/{boot}.pid", layout::RUN)),
            ("server-id", self.server_id.to_string()),
            ("port", names::PORT.to_string()),
            // Its sessions do not count among `max_connections`.
            ("admin-address", self.address.to_string()),
            ("admin-port", names::ADMIN_PORT.to_string()),
            ("report-host", format!("{}.{}", self.pod, self.domain)),
            // MySQL's own choice while the pod's name is the host name, so an adopted member finds its relay logs.
            ("relay-log", format!("{}-relay-bin", self.pod)),
        ];
        let fixed = fixed.into_iter().map(|(name, value)| (name, value.to_owned()));
        let mut arguments = vec![argument("defaults-file", my_cnf.as_os_str())];
        arguments.extend(fixed.chain(own).map(|(name, value)| argument(name, value)));
        arguments
    }
}

/// `--name=value`
pub(super) fn argument(name: &str, value: impl AsRef<std::ffi::OsStr>) -> OsString {
    let mut argument = OsString::from(format!("--{name}="));
    argument.push(value);
    argument
}

/// Writes the file that mysqld reads: what running servers get too, as the ConfigMap says it now, and what only restarts
/// change, as the pod was made with.
pub(super) fn write_my_cnf(folder: &Path) -> io::Result<PathBuf> {
    let mut text = match fs::read_to_string(Path::new(layout::CONFIG).join(layout::CONFIG_KEY)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    text.push('\n');
    text.push_str(&static_part());
    let file = folder.join("my.cnf");
    fs::write(&file, text)?;
    Ok(file)
}

/// The part of my.cnf that the pod was made with.
pub(super) fn static_part() -> String {
    env::var(layout::ENV_STATIC).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_after_the_file_and_name_the_boot() {
        let settings = Settings {
            pod: "orders-2".into(),
            domain: "orders.shop.svc".into(),
            address: IpAddr::from([10, 1, 2, 3]),
            server_id: 102,
        };
        let arguments = settings.sealed(Path::new("/run/mysqld/my.cnf"), "1f2e");
        let arguments: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
        assert_eq!(
            arguments[0], "--defaults-file=/run/mysqld/my.cnf",
            "mysqld wants it first"
        );
        for wanted in [
            "--pid-file=/run/mysqld/1f2e.pid",
            "--server-id=102",
            "--report-host=orders-2.orders.shop.svc",
            "--admin-address=10.1.2.3",
            "--relay-log=orders-2-relay-bin",
            "--super-read-only=ON",
        ] {
            assert!(arguments.contains(&wanted), "{wanted}: {arguments:?}");
        }
    }
}
