//! `stateward agent mysql-init`: makes the data directory when there is none.
//!
//! It is made beside its place, with the accounts by which Stateward reaches the server, made durable, and renamed. Whatever ends
//! this in between, the next start finds either nothing or all of it. Nothing of it is in the binlog: a new server has
//! executed no transaction.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use stateward_mysql::{layout, names};
use tokio::process::Command;

use super::launch::{argument, static_part};
use super::{local, volume};

/// The folder in which a data directory is made.
const UNFINISHED: &str = ".unfinished";

/// Why there is no data directory.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A file operation failed.
    #[error("cannot {what}: {error}")]
    Files {
        /// What was to be done.
        what: &'static str,
        /// Why it failed.
        #[source]
        error: io::Error,
    },
    /// mysqld cannot be started.
    #[error("cannot start mysqld: {0}")]
    Start(#[source] io::Error),
    /// mysqld failed. It said why in its own words before.
    #[error("mysqld --initialize ended with {0}")]
    Failed(ExitStatus),
}

fn files(what: &'static str) -> impl FnOnce(io::Error) -> InitError {
    move |error| InitError::Files { what, error }
}

/// Makes the data directory of the pod's volume, if there is none.
pub async fn init() -> Result<(), InitError> {
    let (root, data) = (Path::new(layout::VOLUME), Path::new(layout::DATA));
    if has_entries(data).map_err(files("read the data directory"))? {
        return Ok(());
    }
    let unfinished = root.join(UNFINISHED);
    remove(&unfinished).map_err(files("remove what an interrupted start left"))?;
    fs::create_dir(&unfinished).map_err(files("write to the volume"))?;
    let run = Path::new(layout::RUN);
    let statements = Statements::write(&run.join("init.sql")).map_err(files("read the passwords"))?;
    let my_cnf = run.join("init.cnf");
    fs::write(&my_cnf, static_part()).map_err(files("write my.cnf"))?;
    let made = unfinished.join("data");
    let mut command = Command::new("mysqld");
    command
        // Some variables, such as lower_case_table_names, are decided now for good.
        .arg(argument("defaults-file", &my_cnf))
        .arg("--initialize-insecure")
        .arg(argument("datadir", &made))
        .arg(argument("init-file", &statements.file))
        .arg(argument("tmpdir", layout::TEMPORARY))
        .arg("--disable-log-bin")
        .current_dir(layout::TEMPORARY)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let status = command.status().await.map_err(InitError::Start)?;
    drop(statements);
    if !status.success() {
        return Err(InitError::Failed(status));
    }
    volume::sync_all(root).map_err(files("make the data durable"))?;
    // An empty folder may be there; it is replaced.
    fs::rename(&made, data).map_err(files("move the data directory into its place"))?;
    volume::sync_folder(root).map_err(files("make the data durable"))?;
    remove(&unfinished).map_err(files("clean up"))
}

pub(super) fn has_entries(folder: &Path) -> io::Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().transpose()?.is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The statements that mysqld executes while it makes the data directory, in a file in memory, for this user only. It is
/// removed with this.
struct Statements {
    file: PathBuf,
}

impl Statements {
    fn write(file: &Path) -> io::Result<Self> {
        let internal = Path::new(layout::INTERNAL);
        let root = local::password(&Path::new(layout::ROOT).join(layout::PASSWORD_KEY))?;
        let operator = local::password(&internal.join(names::ACCOUNT_OPERATOR))?;
        let clone = local::password(&internal.join(names::ACCOUNT_CLONE))?;
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = fs::OpenOptions::new();
        let mut open = options.write(true).create_new(true).mode(0o600).open(file)?;
        let statements = Self { file: file.to_owned() };
        io::Write::write_all(&mut open, accounts(&root, &operator, &clone).as_bytes())?;
        Ok(statements)
    }
}

impl Drop for Statements {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.file) {
            tracing::warn!(%error, "cannot remove the file with the first statements");
        }
    }
}

/// The accounts of a new server. root is reached through the socket only: 'localhost' is no address, as names are not resolved.
fn accounts(root: &str, operator: &str, clone: &str) -> String {
    let (name, donor) = (names::ACCOUNT_OPERATOR, names::ACCOUNT_CLONE);
    [
        "SET SESSION sql_log_bin = OFF".to_owned(),
        format!("ALTER USER 'root'@'localhost' IDENTIFIED BY {}", quoted(root)),
        format!("CREATE USER '{name}'@'%' IDENTIFIED BY {}", quoted(operator)),
        format!("GRANT ALL ON *.* TO '{name}'@'%' WITH GRANT OPTION"),
        format!("CREATE USER '{donor}'@'%' IDENTIFIED BY {}", quoted(clone)),
        format!("GRANT BACKUP_ADMIN ON *.* TO '{donor}'@'%'"),
    ]
    .map(|statement| statement + ";\n")
    .concat()
}

/// A text as SQL's literal.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("'");
    for character in text.chars() {
        match character {
            '\'' => quoted.push_str("\\'"),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\0' => quoted.push_str("\\0"),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_quoted() {
        assert_eq!(quoted(r"it's \ a;"), r"'it\'s \\ a;'");
        let statements = accounts("r'", "o", "c");
        assert!(statements.contains(r"IDENTIFIED BY 'r\'';"), "{statements}");
        assert_eq!(statements.lines().count(), 6);
    }

    #[test]
    fn a_folder_with_anything_in_it_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        assert!(!has_entries(&data).expect("no folder"));
        fs::create_dir(&data).expect("created");
        assert!(!has_entries(&data).expect("an empty folder"));
        fs::write(data.join("ibdata1"), "").expect("written");
        assert!(has_entries(&data).expect("a folder"));
        remove(&data).expect("removed");
        remove(&data).expect("nothing to remove");
    }
}
