//! A data directory from a backup. It appears whole under its name or not at all.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use stateward_backup::{is_packed, names};
use stateward_etcd::api::agent::{Failure, FailureReason, Inspected, RestoreTask};
use stateward_etcd::api::etcd_restore::RestoreTo;
use tracing::info;

use crate::agent::Folders;
use crate::agent::chain;
use crate::agent::failure::{corrupt, failure, of_io, of_store};
use crate::agent::fetch::fetch;
use crate::agent::inspect::inspected;
use crate::agent::place::Opening;
use crate::agent::replay::replay;
use crate::agent::stop::Stop;
use crate::agent::tool::{self, Restoring};

/// Beside what is fetched: room for a scratch member, and its snapshot.
const SCRATCH: &str = ".scratch";
const REPLAYED: &str = ".replayed";

pub(crate) async fn run(task: &RestoreTask, folders: &Folders, stop: &Stop) -> Result<Inspected, Failure> {
    let data_dir = PathBuf::from(&task.data_dir);
    let done = Inspected {
        location: task.location.clone(),
        sha256: task.sha256.clone(),
        revision: task.revision,
        ..Inspected::default()
    };
    if data_dir.exists() {
        info!("{} is there already: nothing to do", data_dir.display());
        return Ok(done);
    }
    let opening = Opening::new(&task.place, folders)?;
    let (restoring, fetched) = (beside(&data_dir, ".restoring"), beside(&data_dir, ".fetched"));
    let left_behind = [
        restoring.clone(),
        fetched.clone(),
        beside(&fetched, SCRATCH),
        beside(&fetched, REPLAYED),
    ];
    left_behind.iter().try_for_each(|path| clear(path))?;
    let made = stop.guard(make(task, folders, &opening, &restoring, &fetched)).await;
    if made.is_err() {
        clear(&restoring)?;
    }
    left_behind[1..].iter().try_for_each(|path| clear(path))?;
    let made = made?;
    sync_and_rename(&restoring, &data_dir).map_err(|error| of_io(&error, "putting the data directory in its place"))?;
    info!("{} is made", data_dir.display());
    Ok(made)
}

async fn make(
    task: &RestoreTask,
    folders: &Folders,
    opening: &Opening,
    restoring: &Path,
    fetched: &Path,
) -> Result<Inspected, Failure> {
    let key = opening.store.key_of(&task.location).map_err(|error| of_store(&error))?;
    if let Some(parent) = fetched.parent() {
        std::fs::create_dir_all(parent).map_err(|error| of_io(&error, "making the folder of the data directory"))?;
    }
    let entry = opening.store.head(&key).await.map_err(|error| of_store(&error))?;
    let what = |snapshot| Restoring {
        snapshot,
        data_dir: restoring,
        member: &task.member,
        peer_url: &task.peer_url,
        token: &task.token,
        revision_bump: task.revision_bump,
    };
    let path = folders.path.as_ref();
    // etcd's own tool reads a plain file in a folder where it is.
    let plain = Plain::at(opening, &key).filter(|_| task.restore_to.is_none());
    let judging = if plain.is_some() {
        opening.read_through(&key).boxed()
    } else {
        info!("fetching {}", task.location);
        fetch(opening, &key, fetched).await?.judged().boxed()
    };
    let judging = async {
        let proof = judging.await?;
        if proof.sha256() != task.sha256.to_lowercase() {
            return Err(corrupt(&task.location, "it is not the one that was proven"));
        }
        Ok(proof)
    };
    let file = plain.as_ref().map_or(fetched, |plain| &plain.file);
    let (proof, revision) = if let Some(to) = &task.restore_to {
        let proof = judging.await?;
        // What was found for a time when the backup was proven is what is restored.
        let found = RestoreTo {
            revision: Some(task.revision),
            time: None,
        };
        let to = if task.revision > 0 { &found } else { to };
        let revision = reach(opening, (to, proof.opened.revision()), fetched, folders).await?;
        info!("restoring revision {revision} raised by {}", task.revision_bump);
        tool::restore(&what(file), path).await?;
        (proof, revision)
    } else {
        info!("restoring {}", task.location);
        let what = what(file);
        // Judged beside the tool, and nothing is kept unless it is good. Both to their end: what is cleared away after a failure
        // must have no writer any more.
        let (judged, restored) = tokio::join!(judging, tool::restore(&what, path));
        let proof = judged?;
        restored?;
        if let Some(plain) = &plain {
            plain.unchanged(&task.location)?;
        }
        let revision = proof.opened.revision();
        (proof, revision)
    };
    let taken = names::read_snapshot(opening.store.key(), &key).map_or(entry.modified, |named| named.time);
    Ok(Inspected {
        revision,
        ..inspected(opening, &key, &proof, taken)
    })
}

/// A backup in a folder that is not packed.
struct Plain {
    file: PathBuf,
    identity: (u64, u64, i64, i64),
}

impl Plain {
    fn at(opening: &Opening, key: &str) -> Option<Self> {
        let file = opening.store.on_disk(key)?;
        let mut begin = Vec::new();
        std::fs::File::open(&file).ok()?.take(64).read_to_end(&mut begin).ok()?;
        let identity = Self::identity(&file)?;
        (!is_packed(&begin)).then_some(Self { file, identity })
    }

    fn identity(file: &Path) -> Option<(u64, u64, i64, i64)> {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
    }

    /// What was proven and what was restored are the same file only when nobody replaced it meanwhile.
    fn unchanged(&self, location: &str) -> Result<(), Failure> {
        if Self::identity(&self.file) == Some(self.identity) {
            return Ok(());
        }
        let message = format!("{location} was replaced while it was restored");
        Err(failure(FailureReason::BackupChanged, message, true))
    }
}

/// Brings the snapshot in `fetched` forward to a point. Returns its new revision.
async fn reach(
    opening: &Opening,
    (to, revision): (&RestoreTo, i64),
    fetched: &Path,
    folders: &Folders,
) -> Result<i64, Failure> {
    let all = chain::segments(&opening.store).await?;
    let way = chain::way(opening, &all, revision, to).await?;
    let way = way.ok_or_else(|| {
        let message = "the backup lies behind the point to restore to: choose an older one";
        failure(FailureReason::PointMissing, message, false)
    })?;
    if way.revision > revision {
        let (room, replayed) = (beside(fetched, SCRATCH), beside(fetched, REPLAYED));
        let path = folders.path.as_ref();
        replay(opening, &way, (fetched, revision), &replayed, (&room, path)).await?;
        std::fs::rename(&replayed, fetched).map_err(|error| of_io(&error, "keeping the replayed snapshot"))?;
    }
    Ok(way.revision)
}

/// A neighbour in the same folder, so that renaming is one step.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

fn clear(path: &Path) -> Result<(), Failure> {
    let gone = if path.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    match gone {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(of_io(&error, &format!("removing {}", path.display())))
        }
        _ => Ok(()),
    }
}

/// After a power cut the name must not be there without the content.
fn sync_and_rename(from: &Path, to: &Path) -> std::io::Result<()> {
    fn sync(path: &Path) -> std::io::Result<()> {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                sync(&entry?.path())?;
            }
        }
        std::fs::File::open(path)?.sync_all()
    }
    sync(from)?;
    std::fs::rename(from, to)?;
    match to.parent() {
        Some(parent) => std::fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}
