//! Deleting what is not to be kept: old periodic backups by count and age, the changes that only those needed, and what
//! earlier attempts left behind.

use futures::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use stateward_backup::retention::{Keep, Known, Taken, segments_to_delete, to_delete};
use stateward_backup::{Error, Store, names};
use stateward_etcd::api::agent::{Failure, Retention};
use tracing::{info, warn};

use crate::agent::chain;
use crate::agent::failure::of_store;
use crate::agent::inspect::snapshots;
use crate::agent::stop::Stop;

/// After this time an unproven one-shot backup of another object is nobody's work under way any more: an attempt is ended after
/// six hours, and so is its proof.
const STALE: SignedDuration = SignedDuration::from_hours(24);

/// Deletes what retention lets go. Returns what is gone, and in words what could not be done: the backup is good, and that an
/// old one stays is no reason to call it failed.
pub(crate) async fn old_ones(
    store: &Store,
    retention: &Retention,
    taken: Taken<'_>,
    stop: &Stop,
) -> (Vec<String>, String) {
    let keep = Keep {
        count: retention.max_backups.filter(|count| *count > 0),
        seconds: retention.max_age_seconds.filter(|seconds| *seconds > 0),
    };
    let mut deleted = Vec::new();
    if keep == Keep::default() {
        return (deleted, String::new());
    }
    let keys = |locations: &[String]| locations.iter().flat_map(|location| store.key_of(location)).collect();
    let known = Known {
        proven: keys(&retention.proven),
        unproven: keys(&retention.unproven),
    };
    let problem = match stop.guard(delete(store, &known, taken, keep, &mut deleted)).await {
        Ok(()) => String::new(),
        Err(failure) => {
            warn!("old backups could not be deleted: {}", failure.message);
            failure.message
        }
    };
    (deleted, problem)
}

async fn delete(
    store: &Store,
    known: &Known,
    taken: Taken<'_>,
    keep: Keep,
    deleted: &mut Vec<String>,
) -> Result<(), Failure> {
    let path = store.key();
    let found = snapshots(store).await?;
    let goes: Vec<_> = to_delete(&found, known, taken, keep, Timestamp::now())
        .into_iter()
        .cloned()
        .collect();
    for old in &goes {
        store.delete(&old.key).await.map_err(|error| of_store(&error))?;
        info!("let go of {}", store.location(&old.key));
        deleted.push(store.location(&old.key));
    }
    let kept: Vec<_> = found.into_iter().filter(|snapshot| !goes.contains(snapshot)).collect();
    let segments = chain::segments(store).await?;
    for old in segments_to_delete(&segments, &kept) {
        store.delete(&old.key(path)).await.map_err(|error| of_store(&error))?;
    }
    Ok(())
}

/// Deletes what one-shot attempts at this path left unproven: all of one EtcdBackup but for `but`, whose attempts follow each
/// other, and those of others that are old. Returns what is gone.
pub(crate) async fn unproven_ones(store: &Store, of: &str, but: &str) -> Result<Vec<String>, Error> {
    let mut deleted = Vec::new();
    let prefix = names::unproven_ones(store.key());
    let ours = names::unproven(store.key(), &format!("{of}-"));
    let mut found = store.list(&prefix);
    while let Some(entry) = found.try_next().await? {
        let is_ours = !of.is_empty() && entry.key.starts_with(&ours);
        let is_stale = Timestamp::now().duration_since(entry.modified) > STALE;
        if entry.key != but && (is_ours || is_stale) {
            store.delete(&entry.key).await?;
            info!("deleted {}, which was never proven", store.location(&entry.key));
            deleted.push(store.location(&entry.key));
        }
    }
    Ok(deleted)
}
