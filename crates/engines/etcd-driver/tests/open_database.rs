//! Databases of real servers, opened as they stream by, against what etcd's own tool says of them.

#[path = "client_support/mod.rs"]
mod support;

use std::process::Command;
use std::sync::Arc;

use futures::TryStreamExt;
use stateward_etcd_driver::client::messages::DeleteRangeRequest;
use stateward_etcd_driver::client::{Checker, Client, Opened, Passing};
use support::{Etcd, Program, programs, until};

/// A server with much in it: several pages, large values over many pages, old revisions, deleted keys.
async fn filled(program: &Program) -> (Etcd, Client) {
    let etcd = Etcd::first(program, &[]);
    let client = etcd.client();
    until("a first write", async || client.put("a", "1").await.ok()).await;
    for round in 0..3 {
        for key in 0..150 {
            let value = vec![b'x'; 20 + key * 7];
            client.put(format!("key-{key}"), value).await.expect("put");
        }
        client
            .put(format!("large-{round}"), vec![7; 900_000])
            .await
            .expect("put");
        // Many keys of almost nothing: leaves with long lists.
        for key in 0..100 {
            client.put(format!("{key}"), "").await.expect("put");
        }
    }
    let gone = DeleteRangeRequest {
        key: b"key-1".to_vec(),
        range_end: b"key-2".to_vec(),
    };
    client.delete_range(gone).await.expect("deleted");
    (etcd, client)
}

async fn snapshot(client: &Client) -> Vec<u8> {
    let stream = client.snapshot(Arc::default()).await.expect("a stream");
    let pieces: Vec<_> = stream.try_collect().await.expect("a snapshot");
    pieces.concat()
}

fn open(database: &[u8], size: usize) -> Result<Opened, stateward_etcd_driver::client::BoltError> {
    let mut checker = Checker::default();
    database.chunks(size).for_each(|piece| checker.push(piece));
    checker.finish()
}

/// What etcd's own tool says: keys and revision. From 3.6 on it counts keys that live, before everything stored: then one
/// of before is asked.
fn status(program: &Program, snapshot: &[u8]) -> Option<(u64, i64)> {
    let counts_all = |program: &Program| !program.version.at_least(3, 6, 0);
    let older = programs().into_iter().rfind(counts_all);
    let program = if counts_all(program) {
        Some(program)
    } else {
        older.as_ref()
    }?;
    let folder = program.path.parent()?;
    let tool = [folder.join("etcdutl"), folder.join("etcdctl")]
        .into_iter()
        .find(|tool| tool.exists())?;
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("snapshot");
    std::fs::write(&file, snapshot).expect("written");
    let said = Command::new(tool)
        .env("ETCDCTL_API", "3")
        .args(["snapshot", "status", "--write-out=json"])
        .arg(&file)
        .output()
        .expect("the tool runs");
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).expect("its words");
    Some((said["totalKey"].as_u64()?, said["revision"].as_i64()?))
}

#[tokio::test]
async fn keys_and_revision_are_those_that_etcds_own_tool_finds() {
    for program in programs() {
        let (_etcd, client) = filled(&program).await;
        let compact = client
            .status()
            .await
            .expect("a status")
            .header
            .expect("a header")
            .revision;
        for compacted in [false, true] {
            if compacted {
                client.compact(compact, true).await.expect("compacted");
                client.defragment().await.expect("defragmented");
            }
            let whole = snapshot(&client).await;
            let mut passing = Passing::default();
            whole.chunks(33_000).for_each(|piece| passing.take(piece));
            let opened = passing.finish().expect("a good snapshot").opened;
            let (major, minor) = (program.version.major(), program.version.minor());
            assert_eq!(opened.cluster_version, format!("{major}.{minor}.0"));
            assert_eq!(opened.revision(), compact, "{}", program.version);
            assert_eq!(
                opened.compacted,
                if compacted { compact } else { 0 },
                "{}",
                program.version
            );
            if let Some(said) = status(&program, &whole) {
                assert_eq!(
                    (opened.total_keys, opened.newest_key_revision),
                    said,
                    "{}",
                    program.version
                );
            }
            let database = &whole[..whole.len() - 32];
            for size in [1_000, 4_096, 5_000, database.len()] {
                assert_eq!(open(database, size), Ok(opened.clone()), "pieces of {size}");
            }
        }
    }
}

#[tokio::test]
async fn harmed_databases_are_refused_or_read_but_never_panic() {
    let program = programs().pop().expect("an etcd");
    let (_etcd, client) = filled(&program).await;
    let whole = snapshot(&client).await;
    let database = &whole[..whole.len() - 32];
    let good = open(database, 4_096).expect("a good one");
    for length in (0..database.len()).step_by(database.len() / 97) {
        assert!(open(&database[..length], 10_000).is_err(), "cut at {length}");
    }
    // Every byte of the first pages' heads, and bytes all over the file, each bit.
    let heads = (0..64).flat_map(|page| (0..64).map(move |byte| page * 4_096 + byte));
    let spread = (0..database.len()).step_by(4_099);
    let mut harmed = database.to_vec();
    let mut refused = 0;
    for at in heads.chain(spread).filter(|at| *at < database.len()) {
        let bit = 1 << (at % 8);
        harmed[at] ^= bit;
        refused += usize::from(open(&harmed, 32_768) != Ok(good.clone()));
        harmed[at] ^= bit;
    }
    assert!(refused > 50, "only {refused} were noticed");
    assert!(open(b"STATEWARD", 3).is_err() && open(&vec![0; 100_000], 4_096).is_err());
}
