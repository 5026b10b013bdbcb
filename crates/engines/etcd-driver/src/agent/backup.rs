//! One backup: the snapshot of the best member streamed to the store, read back, and old ones let go.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::client::messages::RangeRequest;
use crate::client::{Opened, Sound};
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stateward_backup::retention::Taken;
use stateward_backup::{Error as StoreError, names, pack};
use stateward_etcd::api::agent::{BackedUp, BackupTask, Failure, FailureReason};
use stateward_etcd::api::etcd_backup::{BackupRecord, Verify};
use tracing::{info, warn};

use crate::agent::Folders;
use crate::agent::failure::{corrupt, failure, of_etcd, of_key, of_put, of_snapshot, of_store};
use crate::agent::let_go;
use crate::agent::passed::{Follower, Passed};
use crate::agent::place::Opening;
use crate::agent::source::{Member, best};
use crate::agent::stop::Stop;

pub(crate) async fn run(task: &BackupTask, folders: &Folders, stop: &Stop) -> Result<BackedUp, Failure> {
    stop.limit(task.timeout_seconds);
    let started = Instant::now();
    let opening = Opening::new(&task.place, folders)?;
    opening.store.sweep();
    let member = stop.guard(best(&task.endpoints, &folders.client_tls)).await?;
    let began = Timestamp::now();
    let key = if task.periodic {
        names::snapshot(opening.store.key(), member.revision(), began)
    } else {
        opening.store.key().to_owned()
    };
    let sent_to = unproven_key(task, &opening).unwrap_or_else(|| key.clone());
    let location = opening.store.location(&key);
    info!(
        "backing up etcd {} at {} (revision {}) to {location}",
        member.status.version,
        member.endpoint,
        member.revision()
    );
    let Uploaded {
        sound,
        stored,
        sent,
        keys,
        key_hash,
    } = upload(&opening, &member, &sent_to, stop).await?;
    let (revision, sha256) = (sound.opened.revision(), sound.sha256());
    info!(
        "proven: revision {revision}, {} entries, sha256 {sha256}",
        sound.opened.total_keys
    );
    if sent_to != key && !task.prove_later {
        publish(&opening, &sent_to, &key, stop).await?;
    }
    let unproven_at = if sent_to != key && task.prove_later {
        opening.store.location(&sent_to)
    } else {
        String::new()
    };
    let record = BackupRecord {
        location,
        unproven_at,
        revision,
        etcd_version: member.status.version.clone(),
        cluster_id: format!("{:x}", member.cluster()),
        endpoint: member.endpoint.clone(),
        size_bytes: i64::try_from(sound.whole.bytes).unwrap_or(i64::MAX),
        stored_bytes: i64::try_from(stored).unwrap_or(i64::MAX),
        sha256,
        completed_at: Some(Time(Timestamp::now())),
        duration_millis: millis(started.elapsed()),
        verified: Some(Verify::Check),
        keys,
        key_hash,
    };
    let mut done = BackedUp {
        record,
        sent_millis: millis(sent - started),
        ..BackedUp::default()
    };
    (done.deleted, done.retention_problem) = clean_up(task, &opening, (&key, &sent_to), stop).await;
    Ok(done)
}

/// Where a one-shot backup is sent first, so that what stands at its path stays until it is proven. A folder needs that only
/// where the proof is still to come: what is written to it has no name before it was read back. A periodic one has a
/// name of its own from the beginning, and nothing stood there.
fn unproven_key(task: &BackupTask, opening: &Opening) -> Option<String> {
    let first = !task.periodic && (task.prove_later || !opening.store.is_folder());
    let attempt = match task.attempt.as_str() {
        "" => Timestamp::now().as_millisecond().to_string(),
        attempt => attempt.to_owned(),
    };
    first.then(|| names::unproven(opening.store.key(), &attempt))
}

/// The proven backup takes its place.
async fn publish(opening: &Opening, from: &str, to: &str, stop: &Stop) -> Result<(), Failure> {
    let store = &opening.store;
    let published = async { store.publish(from, to).await.map_err(|error| of_store(&error)) };
    let published = stop.guard(published).await;
    if published.is_err()
        && let Err(error) = store.delete(from).await
    {
        warn!("{} could not be deleted: {error}", store.location(from));
    }
    published
}

/// Deletes what is not to be kept, now that this one is there.
async fn clean_up(
    task: &BackupTask,
    opening: &Opening,
    (key, sent_to): (&str, &str),
    stop: &Stop,
) -> (Vec<String>, String) {
    if task.periodic {
        let taken = match task.prove_later {
            true => Taken::Unproven(key),
            false => Taken::Proven(key),
        };
        return let_go::old_ones(&opening.store, &task.retention, taken, stop).await;
    }
    let ours = task.attempt.rsplit_once('-').map_or("", |(object, _)| object);
    let swept = async {
        let swept = let_go::unproven_ones(&opening.store, ours, sent_to).await;
        swept.map_err(|error| of_store(&error))
    };
    match stop.guard(swept).await {
        Ok(deleted) => (deleted, String::new()),
        // Without the right to list or delete, nothing that counts is lost.
        Err(failure) => {
            warn!("what earlier attempts left could not be deleted: {}", failure.message);
            Default::default()
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// What came to be in the store, and what its member says of the same revision.
struct Uploaded {
    sound: Sound,
    /// Bytes in the store.
    stored: u64,
    /// When all of them were there.
    sent: Instant,
    keys: Option<i64>,
    key_hash: String,
}

/// Streams the snapshot to the store, opens it as it passes, and reads back what came to be there while the member counts.
async fn upload(opening: &Opening, member: &Member, key: &str, stop: &Stop) -> Result<Uploaded, Failure> {
    let sound = Arc::new(OnceLock::new());
    let began = async {
        let pieces = member.client.snapshot(sound.clone()).await;
        pieces.map_err(|error| of_etcd(&error, &member.endpoint))
    };
    let pieces = stop.guard(began).await?;
    let endpoint = member.endpoint.clone();
    let pieces = pieces.map_err(move |error| of_snapshot(&error, &endpoint));
    let packed = pack(pieces, &opening.packing).map_err(|error| of_key(&error))?;
    let follower = Follower::default();
    let packed = follower.follow(packed);
    let ended = || failure(FailureReason::SnapshotIncomplete, "the snapshot did not end", true);
    let started = Instant::now();
    let (mut said, mut sent) = ((None, String::new()), started);
    let check = async |back| {
        sent = Instant::now();
        info!("sent in {:?}; reading back", sent - started);
        let sound = sound.get().ok_or_else(ended)?;
        let proven;
        let sent = (sound, follower.passed());
        (proven, said) = tokio::join!(prove(opening, key, back, sent), ask_source(member, &sound.opened));
        proven
    };
    let stored = opening.store.put_checked(key, packed, stop.token(), check).await;
    let stored = stored.map_err(|error| of_put(error, |failure| failure))?;
    let sound = sound.get().cloned().ok_or_else(ended)?;
    let (keys, key_hash) = said;
    Ok(Uploaded {
        sound,
        stored,
        sent,
        keys,
        key_hash,
    })
}

/// Judges what is read back. What is byte for byte the snapshot that was opened need not be opened again; what is packed is
/// unpacked and opened.
async fn prove(
    opening: &Opening,
    key: &str,
    back: BoxStream<'static, Result<Bytes, StoreError>>,
    (sound, sent): (&Sound, Passed),
) -> Result<(), Failure> {
    let same = if opening.packing.is_plain() {
        Passed::of(back).await.map_err(|error| of_store(&error))? == sent
    } else {
        opening.judge(key, opening.unpacked(back)).await?.whole == sound.whole
    };
    if same {
        return Ok(());
    }
    let mut failure = corrupt(&opening.store.location(key), "what is read back is not what was sent");
    failure.retry = true;
    Err(failure)
}

/// How many keys there are at the backup's revision and etcd's own hash of them, as the member says; a restore can be
/// compared with both. Neither is worth failing for: the revision may have been compacted meanwhile.
async fn ask_source(member: &Member, opened: &Opened) -> (Option<i64>, String) {
    let revision = opened.revision();
    let request = RangeRequest::count_of_all(revision);
    let keys = member.client.range(request).await.ok().map(|answer| answer.count);
    let hash = match member.client.hash_kv(revision).await {
        // The hash covers what was not compacted: with another point of compaction it is another one.
        Ok(answer) if answer.compact_revision.max(0) == opened.compacted => format!("{:08x}", answer.hash),
        _ => String::new(),
    };
    (keys, hash)
}

#[cfg(test)]
mod tests {
    use crate::client::Whole;
    use futures::StreamExt;
    use stateward_core::store::{FileStore, StoreBlocks};
    use stateward_etcd::api::agent::Place;

    use super::*;

    #[tokio::test]
    async fn what_is_read_back_must_be_what_was_sent() {
        // given a plain backup that was sent
        let file = FileStore {
            claim_name: "any".into(),
            path: "file".into(),
        };
        let store = StoreBlocks {
            file: Some(file),
            ..StoreBlocks::default()
        };
        let place = Place {
            store,
            ..Place::default()
        };
        let claim = tempfile::tempdir().expect("a folder");
        let folders = Folders {
            claim: claim.path().to_owned(),
            ..Folders::default()
        };
        let opening = Opening::new(&place, &folders).expect("a place");
        let sound = Sound {
            whole: Whole {
                sha256: [0; 32],
                bytes: 4,
            },
            opened: Opened::default(),
        };
        let stream = |text: &'static [u8]| futures::stream::iter([Ok(Bytes::from_static(text))]).boxed();
        let sent = Passed::of(stream(b"sent")).await.expect("no error");
        // when the same comes back, or something else
        for (back, good) in [(&b"sent"[..], true), (b"sens", false), (b"sen", false), (b"", false)] {
            let proven = prove(&opening, "file", stream(back), (&sound, sent.clone())).await;
            // then only the same is taken, and the rest is tried again
            match proven {
                Ok(()) => assert!(good, "{back:?} was taken"),
                Err(failure) => assert!(
                    !good && failure.reason == FailureReason::BackupCorrupt && failure.retry,
                    "{failure:?}"
                ),
            }
        }
    }
}
