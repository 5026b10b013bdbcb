//! The proof by restoring: a scratch member made of the backup must hold what the record says.

use std::path::Path;

use crate::client::messages::RangeRequest;
use stateward_backup::retention::Taken;
use stateward_etcd::api::agent::{Failure, ProveTask, Proven};
use stateward_etcd::api::etcd_backup::Verify;
use tracing::info;

use crate::agent::Folders;
use crate::agent::failure::{corrupt, of_etcd, of_io, of_store};
use crate::agent::fetch::fetch;
use crate::agent::let_go;
use crate::agent::member::Scratch;
use crate::agent::place::Opening;
use crate::agent::stop::Stop;

pub(crate) async fn run(task: &ProveTask, folders: &Folders, stop: &Stop) -> Result<Proven, Failure> {
    let opening = Opening::new(&task.place, folders)?;
    let room = room(&folders.scratch)?;
    let mut proven = stop.guard(prove(task, folders, &opening, room.path())).await?;
    let (store, record) = (&opening.store, &task.record);
    let key = store.key_of(&record.location).map_err(|error| of_store(&error))?;
    if !record.unproven_at.is_empty() {
        let published = async {
            let from = store.key_of(&record.unproven_at)?;
            store.publish(&from, &key).await
        };
        stop.guard(async { published.await.map_err(|error| of_store(&error)) })
            .await?;
    }
    (proven.deleted, proven.retention_problem) =
        let_go::old_ones(store, &task.retention, Taken::Proven(&key), stop).await;
    Ok(proven)
}

/// A folder in the scratch volume that goes when the work is done.
pub(crate) fn room(scratch: &Path) -> Result<tempfile::TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("agent-")
        .tempdir_in(scratch)
        .map_err(|error| of_io(&error, &format!("making room in {}", scratch.display())))
}

async fn prove(task: &ProveTask, folders: &Folders, opening: &Opening, room: &Path) -> Result<Proven, Failure> {
    let record = &task.record;
    let location = match record.unproven_at.as_str() {
        "" => record.location.as_str(),
        elsewhere => elsewhere,
    };
    let key = opening.store.key_of(location).map_err(|error| of_store(&error))?;
    let file = room.join("snapshot");
    let proof = fetch(opening, &key, &file).await?.judged().await?;
    if proof.sha256() != record.sha256.to_lowercase() {
        return Err(corrupt(location, "its SHA-256 is not the recorded one"));
    }
    let scratch = Scratch::from_snapshot(&file, room, folders.path.as_ref()).await?;
    let revision = proof.opened.revision();
    let request = RangeRequest::count_of_all(revision);
    let here = |error: crate::client::Error| of_etcd(&error, "the scratch member");
    let keys = scratch.client.range(request).await.map_err(here)?.count;
    let status = scratch.client.status().await.map_err(here)?;
    let hash = scratch
        .client
        .hash_kv(revision)
        .await
        .map_or(String::new(), |answer| format!("{:08x}", answer.hash));
    scratch.end().await;
    info!(
        "the scratch member of {} has {keys} keys at revision {revision}, hash {hash}",
        status.version
    );
    if record.keys.is_some_and(|recorded| recorded != keys) {
        let recorded = record.keys.unwrap_or_default();
        return Err(corrupt(
            location,
            format!("restored, it has {keys} keys where the cluster had {recorded}"),
        ));
    }
    // Another minor version may hash in another way.
    let same_minor = minor(&status.version) == minor(&record.etcd_version);
    if same_minor && !hash.is_empty() && !record.key_hash.is_empty() && hash != record.key_hash {
        let recorded = &record.key_hash;
        return Err(corrupt(
            location,
            format!("restored, its keys hash to {hash} where the cluster's did to {recorded}"),
        ));
    }
    Ok(Proven {
        verified: Verify::Restore,
        keys,
        key_hash: hash,
        ..Proven::default()
    })
}

fn minor(version: &str) -> Vec<&str> {
    version.split('.').take(2).collect()
}
