//! Finding the backup that a restore names, and proving it. Nothing is changed.

use crate::client::Sound;
use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_backup::Store;
use stateward_backup::names::{self, Snapshot};
use stateward_etcd::api::agent::{Failure, FailureReason, InspectTask, Inspected};
use stateward_etcd::api::etcd_restore::RestoreTo;
use tracing::{info, warn};

use crate::agent::Folders;
use crate::agent::chain;
use crate::agent::failure::{failure, of_store};
use crate::agent::place::Opening;
use crate::agent::stop::Stop;

pub(crate) async fn run(task: &InspectTask, folders: &Folders, stop: &Stop) -> Result<Inspected, Failure> {
    let opening = Opening::new(&task.place, folders)?;
    stop.guard(find(task, &opening)).await
}

async fn find(task: &InspectTask, opening: &Opening) -> Result<Inspected, Failure> {
    let store = &opening.store;
    if let Some(to) = &task.restore_to {
        return before(task, to, opening).await;
    }
    if let Some(location) = &task.location {
        let key = store.key_of(location).map_err(|error| of_store(&error))?;
        return one(opening, &key).await;
    }
    if task.latest {
        return latest(opening).await;
    }
    let exact = one(opening, store.key()).await;
    match exact {
        Err(missing) if missing.reason == FailureReason::BackupMissing => Err(hint(missing, store).await),
        other => other,
    }
}

/// A path that holds periodic backups and is read as a single one is an easy mistake.
async fn hint(mut missing: Failure, store: &Store) -> Failure {
    if let Ok(found) = snapshots(store).await
        && let Some(newest) = found.last()
    {
        missing.message = format!(
            "{}; there are {} periodic backups of that path: set latest: true, or name one, such as {}",
            missing.message,
            found.len(),
            store.location(&newest.key)
        );
    }
    missing
}

/// One file, read through.
async fn one(opening: &Opening, key: &str) -> Result<Inspected, Failure> {
    let entry = opening.store.head(key).await.map_err(|error| of_store(&error))?;
    let proof = opening.read_through(key).await?;
    let named = names::read_snapshot(opening.store.key(), key);
    Ok(inspected(
        opening,
        key,
        &proof,
        named.map_or(entry.modified, |named| named.time),
    ))
}

pub(crate) fn inspected(opening: &Opening, key: &str, proof: &Sound, taken: Timestamp) -> Inspected {
    let location = opening.store.location(key);
    let revision = proof.opened.revision();
    info!("{location} is good: revision {revision}, {} bytes", proof.whole.bytes);
    Inspected {
        location,
        revision,
        sha256: proof.sha256(),
        size_bytes: i64::try_from(proof.whole.bytes).unwrap_or(i64::MAX),
        taken: Some(Time(taken)),
        cluster_version: proof.opened.cluster_version.clone(),
    }
}

/// The periodic backups of the path, oldest first.
pub(crate) async fn snapshots(store: &Store) -> Result<Vec<Snapshot>, Failure> {
    let path = store.key();
    let found = store
        .list(&names::snapshots(path))
        .try_filter_map(|entry| std::future::ready(Ok(names::read_snapshot(path, &entry.key))));
    let mut found: Vec<_> = found.try_collect().await.map_err(|error| of_store(&error))?;
    found.sort();
    Ok(found)
}

/// The file is no good, or not there: an older one may be.
fn passes_over(failure: &Failure) -> bool {
    matches!(
        failure.reason,
        FailureReason::BackupCorrupt | FailureReason::BackupMissing
    )
}

/// The newest that proves good. One that does not is passed over with a word; a store that fails is not.
async fn latest(opening: &Opening) -> Result<Inspected, Failure> {
    let mut passed_over = Vec::new();
    for snapshot in snapshots(&opening.store).await?.iter().rev() {
        match opening.read_through(&snapshot.key).await {
            Ok(proof) => return Ok(inspected(opening, &snapshot.key, &proof, snapshot.time)),
            Err(bad) if passes_over(&bad) => {
                warn!("passed over: {}", bad.message);
                passed_over.push(bad.message);
            }
            Err(other) => return Err(other),
        }
    }
    let path = opening.store.location(opening.store.key());
    Err(match passed_over.into_iter().next() {
        Some(newest) => failure(
            FailureReason::BackupCorrupt,
            format!("no periodic backup of {path} is good; the newest: {newest}"),
            false,
        ),
        None => failure(
            FailureReason::BackupMissing,
            format!("there is no periodic backup of {path}: correct the path, or leave latest out"),
            false,
        ),
    })
}

/// The newest good snapshot from which the streamed changes lead to a point.
async fn before(task: &InspectTask, to: &RestoreTo, opening: &Opening) -> Result<Inspected, Failure> {
    let store = &opening.store;
    let candidates: Vec<Snapshot> = match &task.location {
        Some(location) => vec![named(store, &store.key_of(location).map_err(|error| of_store(&error))?).await?],
        None => {
            let mut found = snapshots(store).await?;
            if found.is_empty() {
                found.push(named(store, store.key()).await?);
            }
            found
        }
    };
    let begun_before = |snapshot: &&Snapshot| match (to.revision, &to.time) {
        (Some(revision), _) => snapshot.revision <= revision,
        (None, Some(time)) => snapshot.time <= time.0,
        (None, None) => true,
    };
    let all = chain::segments(store).await?;
    let mut problem = None;
    for snapshot in candidates.iter().rev().filter(begun_before) {
        let proof = match opening.read_through(&snapshot.key).await {
            Ok(proof) => proof,
            Err(bad) if passes_over(&bad) => {
                warn!("passed over: {}", bad.message);
                problem.get_or_insert(bad);
                continue;
            }
            Err(other) => return Err(other),
        };
        match chain::way(opening, &all, proof.opened.revision(), to).await {
            Ok(Some(way)) => {
                return Ok(Inspected {
                    revision: way.revision,
                    ..inspected(opening, &snapshot.key, &proof, snapshot.time)
                });
            }
            Ok(None) => {}
            // An older snapshot may have changes behind it that lead further: a gap can lie between.
            Err(missing) if missing.reason == FailureReason::PointMissing => problem = problem.or(Some(missing)),
            Err(other) => return Err(other),
        }
    }
    Err(problem.unwrap_or_else(|| {
        let path = store.location(store.key());
        let message = format!("there is no backup of {path} from before that point: choose a later one");
        failure(FailureReason::PointMissing, message, false)
    }))
}

/// A snapshot by its key: what its name says, or for any other name what the store knows.
async fn named(store: &Store, key: &str) -> Result<Snapshot, Failure> {
    if let Some(named) = names::read_snapshot(store.key(), key) {
        return Ok(named);
    }
    let entry = store.head(key).await.map_err(|error| of_store(&error))?;
    Ok(Snapshot {
        time: entry.modified,
        revision: 0,
        key: key.to_owned(),
    })
}
