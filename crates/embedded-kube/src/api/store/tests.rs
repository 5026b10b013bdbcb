use serde_json::json;

use super::*;

fn put(name: &str, expect: Expect) -> Write {
    Write {
        key: Key::new("configmaps", "default", name),
        expect,
        change: Change::Put(json!({"metadata": {"name": name}})),
    }
}

#[tokio::test]
async fn a_write_is_seen_by_readers_logs_and_the_next_opener() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let store = Store::open(&file).unwrap();
    let start = store.snapshot().revision;
    // when
    let made = store.write(put("a", Expect::Absent)).await.unwrap();
    let rejected = store.write(put("a", Expect::Absent)).await;
    let stale = store.write(put("a", Expect::Revision(made.revision + 7))).await;
    let gone = store
        .write(Write {
            key: Key::new("configmaps", "default", "b"),
            expect: Expect::Revision(1),
            change: Change::Delete,
        })
        .await;
    // then
    assert_eq!(
        (rejected.unwrap_err(), stale.unwrap_err()),
        (WriteError::Exists, WriteError::Stale)
    );
    assert_eq!(gone.unwrap_err(), WriteError::Missing);
    assert_eq!(store.log("configmaps").after(start, 10).unwrap().len(), 1);
    drop(store);
    let again = Store::open(&file).unwrap();
    assert_eq!(again.snapshot().revision, made.revision);
    assert_eq!(
        again.get(&Key::new("configmaps", "default", "a")).unwrap().value,
        made.value
    );
    assert!(
        again.log("configmaps").after(start, 10).is_err(),
        "history does not outlive the process"
    );
}

#[tokio::test]
async fn lists_are_by_resource_and_namespace_and_can_start_behind_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("state")).unwrap();
    for (storage, namespace, name) in [
        ("pods", "a", "1"),
        ("pods", "a", "2"),
        ("pods", "a-b", "1"),
        ("podsx", "a", "1"),
        ("nodes", "", "n"),
    ] {
        let key = Key::new(storage, namespace, name);
        store
            .write(Write {
                key,
                expect: Expect::Absent,
                change: Change::Put(json!({"metadata": {}})),
            })
            .await
            .unwrap();
    }
    let snapshot = store.snapshot();
    let keys = |storage: &str, namespace: &str, after: Option<&str>| -> Vec<String> {
        snapshot
            .list(storage, namespace, after)
            .map(|(k, _)| k.as_str().to_owned())
            .collect()
    };
    assert_eq!(keys("pods", "a", None), ["pods/a/1", "pods/a/2"]);
    assert_eq!(keys("pods", "", None).len(), 3);
    assert_eq!(keys("pods", "", Some("pods/a/1")), ["pods/a/2"]);
    assert_eq!(keys("nodes", "", None), ["nodes//n"]);
}

#[tokio::test]
async fn a_log_forgets_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&folder.path().join("state")).unwrap());
    let start = store.snapshot().revision;
    let writes = (0..2100).map(|i| {
        let store = store.clone();
        async move { store.write(put(&format!("c{i}"), Expect::Absent)).await.unwrap() }
    });
    futures::future::join_all(writes).await;
    assert!(store.log("configmaps").after(start, 10).is_err());
    assert_eq!(store.log("configmaps").after(start + 2000, 1000).unwrap().len(), 100);
}
