//! A point between two snapshots: the changes are made again on a scratch member, one transaction a revision, and a
//! snapshot of that is taken.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use futures::StreamExt;
use stateward_etcd::api::agent::Failure;
use tokio::io::AsyncWriteExt;
use tracing::info;

use crate::agent::chain::{self, Way};
use crate::agent::failure::{corrupt, of_etcd, of_io, of_snapshot};
use crate::agent::member::Scratch;
use crate::agent::place::Opening;

const SCRATCH: &str = "the scratch member";

/// Makes `into` the snapshot at the end of the way, from `snapshot`, which has revision `from`.
pub(crate) async fn replay(
    opening: &Opening,
    way: &Way,
    (snapshot, from): (&Path, i64),
    into: &Path,
    (room, path): (&Path, Option<&OsString>),
) -> Result<(), Failure> {
    std::fs::create_dir_all(room).map_err(|error| of_io(&error, "making room for a scratch member"))?;
    let scratch = Scratch::from_snapshot(snapshot, room, path).await?;
    let mut at = from;
    let mut cluster = None;
    let mut leased = 0_u64;
    for segment in &way.segments {
        let (head, changes) = chain::read(opening, segment).await?;
        let location = opening.store.location(&segment.key(opening.store.key()));
        if *cluster.get_or_insert(head.cluster) != head.cluster {
            return Err(corrupt(
                &location,
                "it is of another cluster than the changes before it",
            ));
        }
        for change in changes {
            if change.revision <= at || change.revision > way.revision {
                continue;
            }
            leased += change
                .events
                .iter()
                .flat_map(|event| &event.kv)
                .filter(|kv| kv.lease != 0)
                .count() as u64;
            let done = scratch.client.transaction(change.steps()).await;
            let done = done.map_err(|error| of_etcd(&error, SCRATCH))?;
            at = done.header.map_or(0, |header| header.revision);
            // Each change is one revision, as it was when it happened: anything else is not the same history.
            if at != change.revision {
                let what = format!("made again, its change {} became revision {at}", change.revision);
                return Err(corrupt(&location, what));
            }
        }
    }
    info!(
        "made the changes {} to {at} again; {leased} keys lost their leases",
        from + 1
    );
    let taken = save(&scratch, into).await;
    scratch.end().await;
    taken
}

async fn save(scratch: &Scratch, into: &Path) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| of_io(&error, "saving the snapshot of the scratch member");
    let pieces = scratch.client.snapshot(Arc::default()).await;
    let mut pieces = Box::pin(pieces.map_err(|error| of_etcd(&error, SCRATCH))?);
    let mut file = tokio::fs::File::create(into).await.map_err(wrong)?;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| of_snapshot(&error, SCRATCH))?;
        file.write_all(&piece).await.map_err(wrong)?;
    }
    file.flush().await.map_err(wrong)
}
