//! Saving transactions that only this server has, before it is cloned anew: below `errant` on its volume, which a clone leaves
//! alone.
//!
//! `NAME.sql` has them as `mysqlbinlog` prints them, ready to be read or applied. Where the image has no `mysqlbinlog`, as MySQL's own,
//! `NAME.binlogs` has the binlogs that hold them. `NAME.json` says which ones they are; it is written last.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stateward_core::manifests::hash;
use stateward_mysql::agent::{SaveState, Saving};
use stateward_mysql::{GtidSet, layout};
use tokio::process::Command;

use super::{binlog, volume};

/// A request is answered within this time; what takes longer goes on.
const PATIENCE: Duration = Duration::from_secs(2);

/// The record of what was saved.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    gtids: GtidSet,
    file: String,
    at: jiff::Timestamp,
}

/// What was saved, and saves more.
#[derive(Clone, Debug)]
pub(super) struct Errant {
    volume: PathBuf,
    data: PathBuf,
    last: Arc<Mutex<Option<SaveState>>>,
}

#[derive(Debug, thiserror::Error)]
enum SaveError {
    #[error("{}: {error}", file.display())]
    File { file: PathBuf, error: io::Error },
    #[error("mysqlbinlog ended with {0}")]
    Tool(String),
    #[error("{0} of them are not in its binlogs any more")]
    Missing(u64),
}

fn file_error(file: &Path) -> impl FnOnce(io::Error) -> SaveError {
    let file = file.to_owned();
    move |error| SaveError::File { file, error }
}

impl Errant {
    pub(super) fn new(volume: &Path, data: &Path) -> Self {
        Self {
            volume: volume.to_owned(),
            data: data.to_owned(),
            last: Arc::default(),
        }
    }

    fn folder(&self) -> PathBuf {
        self.volume.join(layout::ERRANT)
    }

    fn records(&self) -> Vec<Record> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        let mut files: Vec<PathBuf> = files
            .filter(|file| file.extension().is_some_and(|ending| ending == "json"))
            .collect();
        files.sort();
        let texts = files.iter().filter_map(|file| fs::read(file).ok());
        texts.filter_map(|text| serde_json::from_slice(&text).ok()).collect()
    }

    /// Every set that was saved.
    pub(super) fn saved(&self) -> Vec<GtidSet> {
        self.records().into_iter().map(|record| record.gtids).collect()
    }

    /// The last request, unless it has succeeded.
    pub(super) fn last(&self) -> Option<SaveState> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: Option<SaveState>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Saves transactions, unless they are saved already. The work goes on when nobody waits for it.
    pub(super) async fn save(&self, gtids: GtidSet) -> Saving {
        if let Some(record) = self.records().into_iter().find(|record| record.gtids.contains(&gtids)) {
            return Saving::Saved { file: record.file };
        }
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.as_ref().is_some_and(|last| last.error.is_none()) {
                return Saving::Running;
            }
            *last = Some(SaveState {
                gtids: gtids.clone(),
                error: None,
            });
        }
        let this = self.clone();
        let work = tokio::spawn(async move {
            match this.write(&gtids).await {
                Ok(file) => {
                    this.set(None);
                    Saving::Saved { file }
                }
                Err(error) => {
                    let reason = error.to_string();
                    tracing::warn!(%gtids, reason, "cannot save transactions");
                    this.set(Some(SaveState {
                        gtids,
                        error: Some(reason.clone()),
                    }));
                    Saving::Failed { reason }
                }
            }
        });
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(Ok(saving)) => saving,
            Ok(Err(error)) => Saving::Failed {
                reason: error.to_string(),
            },
            Err(_) => Saving::Running,
        }
    }

    async fn write(&self, gtids: &GtidSet) -> Result<String, SaveError> {
        let folder = self.folder();
        fs::create_dir_all(&folder).map_err(file_error(&folder))?;
        let (this, wanted) = (self.clone(), gtids.clone());
        let found = tokio::task::spawn_blocking(move || this.holders(&wanted)).await;
        let files = found.map_err(|error| file_error(&self.data)(io::Error::other(error)))??;
        let name = hash(gtids);
        let kept = match self.print(gtids, &files, &folder.join(format!("{name}.sql"))).await? {
            Some(file) => file,
            None => link(&self.data, &files, &folder.join(format!("{name}.binlogs")))?,
        };
        let file = kept.strip_prefix(&self.volume).unwrap_or(&kept);
        let record = Record {
            gtids: gtids.clone(),
            file: file.display().to_string(),
            at: jiff::Timestamp::now(),
        };
        let text = serde_json::to_vec(&record).map_err(|error| file_error(&folder)(error.into()))?;
        // First what the record speaks of, then the record.
        volume::sync_all(&folder).map_err(file_error(&folder))?;
        let place = folder.join(format!("{name}.json"));
        let part = folder.join(format!("{name}.json.part"));
        fs::write(&part, text).map_err(file_error(&part))?;
        volume::sync_all(&folder).map_err(file_error(&folder))?;
        fs::rename(&part, &place).map_err(file_error(&place))?;
        volume::sync_folder(&folder).map_err(file_error(&folder))?;
        Ok(record.file)
    }

    /// The binlogs that hold the transactions, oldest first. The newest are read first: a former primary's own are there.
    fn holders(&self, gtids: &GtidSet) -> Result<Vec<String>, SaveError> {
        let index = self.data.join("binlog.index");
        let text = fs::read_to_string(&index).map_err(file_error(&index))?;
        let mut left = gtids.clone();
        let tagged = gtids.intervals().any(|(source, ..)| source.tag.is_some());
        let mut holders = Vec::new();
        for line in text.lines().rev().filter(|line| !line.is_empty()) {
            let name = line.trim_start_matches("./");
            let file = self.data.join(name);
            let content = binlog::content(&file).map_err(file_error(&file))?;
            let rest = left.subtract(&content.gtids);
            if rest != left || (tagged && content.tagged) {
                holders.push(name.to_owned());
            }
            left = rest;
            if left.is_empty() {
                break;
            }
        }
        // What has a tag is found by mysqlbinlog only.
        let missing = left.intervals().filter(|(source, ..)| source.tag.is_none());
        let missing: u64 = missing.map(|(_, first, last)| last - first + 1).sum();
        if missing > 0 {
            return Err(SaveError::Missing(missing));
        }
        holders.reverse();
        Ok(holders)
    }

    /// Prints the transactions with mysqlbinlog. `None`: the image has none.
    async fn print(&self, gtids: &GtidSet, files: &[String], place: &Path) -> Result<Option<PathBuf>, SaveError> {
        let part = place.with_extension("sql.part");
        let output = File::create(&part).map_err(file_error(&part))?;
        let mut command = Command::new("mysqlbinlog");
        command
            .arg("--no-defaults")
            .arg("--verbose")
            .arg(format!("--include-gtids={gtids}"))
            .args(files)
            .current_dir(&self.data)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::remove_file(&part).map_err(file_error(&part))?;
                return Ok(None);
            }
            child => child.map_err(|error| SaveError::Tool(error.to_string()))?,
        };
        let done = child.wait_with_output().await;
        let done = done.map_err(|error| SaveError::Tool(error.to_string()))?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            let last = said.lines().last().unwrap_or_default().to_owned();
            return Err(SaveError::Tool(format!("{}: {last}", done.status)));
        }
        let missing = gtids.subtract(&printed(&part).map_err(file_error(&part))?);
        if !missing.is_empty() {
            return Err(SaveError::Missing(missing.count()));
        }
        fs::rename(&part, place).map_err(file_error(place))?;
        Ok(Some(place.to_owned()))
    }
}

/// The transactions in what mysqlbinlog printed.
fn printed(file: &Path) -> io::Result<GtidSet> {
    let mut gtids = GtidSet::default();
    for line in BufReader::new(File::open(file)?).split(b'\n') {
        let line = line?;
        let text = line
            .strip_prefix(b"SET @@SESSION.GTID_NEXT= '")
            .and_then(|rest| rest.split(|byte| *byte == b'\'').next());
        let gtid = text.and_then(|text| std::str::from_utf8(text).ok()?.parse::<GtidSet>().ok());
        if let Some(gtid) = gtid {
            gtids.extend(&gtid);
        }
    }
    Ok(gtids)
}

/// Keeps whole binlogs: links need no room, and stay when the data directory is replaced.
fn link(data: &Path, files: &[String], place: &Path) -> Result<PathBuf, SaveError> {
    fs::create_dir_all(place).map_err(file_error(place))?;
    for name in files.iter().collect::<BTreeSet<_>>() {
        let kept = place.join(name);
        if !kept.exists() {
            fs::hard_link(data.join(name), &kept).map_err(file_error(&kept))?;
        }
    }
    volume::sync_folder(place).map_err(file_error(place))?;
    Ok(place.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::binlog::testing::{UUID, binlog};

    #[test]
    fn binlogs_that_hold_transactions_are_kept() {
        // given a server with three binlogs, whose first transactions are purged
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("created");
        for (name, numbers) in [
            ("binlog.000002", 3..5),
            ("binlog.000003", 5..7),
            ("binlog.000004", 7..9),
        ] {
            fs::write(data.join(name), binlog(numbers)).expect("written");
        }
        let index = "./binlog.000002\n./binlog.000003\n./binlog.000004\n";
        fs::write(data.join("binlog.index"), index).expect("written");
        let errant = Errant::new(folder.path(), &data);
        // when the binlogs of the last transactions are looked for, then those are found
        let holders = errant.holders(&GtidSet::range(UUID, 6, 8)).expect("holders");
        assert_eq!(holders, ["binlog.000003", "binlog.000004"]);
        // and a purged one is missed
        let missing = errant.holders(&GtidSet::range(UUID, 1, 8));
        assert!(matches!(missing, Err(SaveError::Missing(2))), "{missing:?}");
        // and they stay when the data directory is replaced
        let kept = link(&data, &holders, &folder.path().join("kept")).expect("kept");
        link(&data, &holders, &kept).expect("kept before");
        fs::remove_dir_all(&data).expect("removed");
        let content = binlog::content(&kept.join("binlog.000003")).expect("a binlog");
        assert_eq!(content.gtids, GtidSet::range(UUID, 5, 6));
    }

    #[test]
    fn printed_transactions_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.sql");
        let uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
        let text = format!(
            "# at 4\nSET @@SESSION.GTID_NEXT= '{uuid}:5'/*!*/;\nBEGIN\nSET @@SESSION.GTID_NEXT= '{uuid}:blue:1'/*!*/;\n\
             SET @@SESSION.GTID_NEXT= 'AUTOMATIC' /* added by mysqlbinlog */ /*!*/;\n"
        );
        fs::write(&file, text).expect("written");
        let found = printed(&file).expect("a file");
        assert_eq!(found.to_string(), format!("{uuid}:5:blue:1"));
    }
}
