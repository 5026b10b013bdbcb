//! Members as their manifests and their agent make them, with real mysqlds on an embedded Kubernetes. It needs the image of
//! `./x images mysql:9.7`.

mod cluster;

use std::time::{Duration, Instant};

use kube::api::DeleteParams;
use mysql_async::Row;
use mysql_async::prelude::Queryable;
use serde_json::json;
use stateward_mysql::GtidSet;
use stateward_mysql::agent::{END, Ended, SAVE_ERRANT, STATE, Saving, State};

use cluster::{CLONE, Members, NAME, NAMESPACE, OPERATOR, ROOT, boot, until};

/// Asserts that a server is sealed, and returns its boot.
async fn sealed(members: &Members, member: u32) -> String {
    let mut session = members.session(member).await;
    let row: Option<Row> = session
        .query_first(
            "SELECT @@super_read_only, @@read_only, @@rpl_semi_sync_replica_enabled, @@rpl_semi_sync_source_enabled,
                @@relay_log_recovery, @@skip_replica_start, @@gtid_mode, @@sync_binlog, @@innodb_flush_log_at_trx_commit,
                @@sync_relay_log, @@binlog_expire_logs_auto_purge, @@rpl_semi_sync_source_timeout, @@server_id,
                @@report_host, @@max_connections, @@innodb_open_files,
                (SELECT COUNT(*) FROM performance_schema.replication_connection_status WHERE service_state <> 'OFF')",
        )
        .await
        .expect("variables");
    let mut row = row.expect("a row");
    let mut next = {
        let mut at = 0;
        move || {
            at += 1;
            row.take::<String, _>(at - 1).expect("a value")
        }
    };
    for (name, wanted) in [
        ("super_read_only", "1"),
        ("read_only", "1"),
        ("rpl_semi_sync_replica_enabled", "0"),
        ("rpl_semi_sync_source_enabled", "0"),
        ("relay_log_recovery", "0"),
        ("skip_replica_start", "1"),
        ("gtid_mode", "ON"),
        ("sync_binlog", "1"),
        ("innodb_flush_log_at_trx_commit", "1"),
        ("sync_relay_log", "1"),
        ("binlog_expire_logs_auto_purge", "0"),
        ("rpl_semi_sync_source_timeout", "4294967295"),
        ("server_id", &format!("{}", 7000 + member)),
        ("report_host", &format!("{NAME}-{member}.{NAME}.{NAMESPACE}.svc")),
        ("max_connections", "77"),
        ("innodb_open_files", "123"),
        ("receivers", "0"),
    ] {
        assert_eq!(next(), wanted, "{name} of member {member}");
    }
    let pid_file: Option<String> = session.query_first("SELECT @@pid_file").await.expect("a variable");
    boot(&pid_file.expect("a row"))
}

async fn executed(members: &Members, member: u32) -> GtidSet {
    let mut session = members.session(member).await;
    let text: Option<String> = session.query_first("SELECT @@gtid_executed").await.expect("a set");
    text.expect("a row").parse().expect("a set")
}

/// Does statements as the operator.
async fn execute(members: &Members, member: u32, statements: &[&str]) {
    let mut session = members.session(member).await;
    for statement in statements {
        session
            .query_drop(*statement)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_start_sealed_and_return_sealed() {
    // given two members, as the manifests make them
    let spec = json!({"size": 2, "version": "9.7.4", "repository": "stateward.local/mysql", "serverIDBase": 7000,
        "storage": {"size": "1Gi"}, "config": {"all": {"max-connections": 77, "innodb_open_files": 123}}});
    let members = Members::start(spec).await;
    // then each is sealed and blank, and the operator reaches it over TLS
    let boots = [sealed(&members, 0).await, sealed(&members, 1).await];
    for member in [0, 1] {
        assert_eq!(executed(&members, member).await, GtidSet::default());
    }
    root_is_local(&members).await;
    agents_reply(&members, &boots).await;
    // and whatever ends a server, it returns sealed
    let boot = killed_by_the_agent(&members, &boots[1]).await;
    killed_with_its_container(&members, &boot).await;
    cloned(&members).await;
    transactions_are_saved(&members).await;
    a_writable_server_is_not_stopped_gracefully(&members).await;
    members.kube.stop().await;
}

/// root logs in through the socket, and nowhere else.
async fn root_is_local(members: &Members) {
    let denied = members.log_in(0, "root", ROOT).await.expect_err("root is local");
    // The server hides that there is no such account: it asks for the password by a method that it draws from the name and a secret of
    // its own, which may be one that this client does not know.
    let denied = denied.to_string();
    let is_denied = denied.contains("1045") || denied.contains("Unknown authentication plugin");
    assert!(is_denied, "{denied}");
    members
        .log_in(0, "stateward", OPERATOR)
        .await
        .expect("the operator's account");
    members
        .log_in(0, "stateward", "guessed")
        .await
        .expect_err("a wrong password");
}

async fn agents_reply(members: &Members, boots: &[String; 2]) {
    assert_eq!(members.ask_as_a_stranger(0, STATE).await, 401);
    assert_eq!(members.ask_as_a_stranger(0, "/ready").await, 200);
    for (member, boot) in [0, 1].into_iter().zip(boots) {
        let state: State = members.ask(member, STATE, None).await;
        let running = stateward_mysql::agent::Mysqld::Running {
            boot: boot.clone(),
            ready: true,
        };
        assert_eq!(state.mysqld, running);
        let volume = state.volume.expect("a volume");
        assert!(
            volume.size > volume.free && volume.free > 0 && volume.binlogs > 0,
            "{volume:?}"
        );
        assert_eq!((state.saved, state.saving), (Vec::new(), None));
    }
}

/// The agent ends the process that is meant, and no other one.
async fn killed_by_the_agent(members: &Members, boot: &str) -> String {
    let other: Ended = members.ask(1, END, Some(json!({"boot": "another"}))).await;
    assert_eq!(other, Ended::Other { boot: boot.to_owned() });
    assert_eq!(sealed(members, 1).await, boot);
    let ended: Ended = members.ask(1, END, Some(json!({"boot": boot}))).await;
    assert_eq!(ended, Ended::Killed { boot: boot.to_owned() });
    let next = members.other_boot(1, boot).await;
    assert_eq!(members.restarts(1).await, (1, Some(137)));
    assert_eq!(sealed(members, 1).await, next);
    next
}

async fn killed_with_its_container(members: &Members, boot: &str) {
    let faults = members.kube.faults().expect("nodes");
    let pod = format!("{NAME}-1");
    faults.kill(NAMESPACE, &pod, Some("mysqld"), 9).await.expect("killed");
    let next = members.other_boot(1, boot).await;
    assert_eq!(members.restarts(1).await.0, 2);
    assert_eq!(sealed(members, 1).await, next);
}

/// A clone ends with a new start in the same container.
async fn cloned(members: &Members) {
    // given data on member 0
    let open = "SET GLOBAL super_read_only = OFF, GLOBAL read_only = OFF";
    let statements = [
        open,
        "CREATE DATABASE app",
        "CREATE TABLE app.rows (id INT PRIMARY KEY)",
        "INSERT INTO app.rows VALUES (1)",
        "SET GLOBAL super_read_only = ON",
    ];
    execute(members, 0, &statements).await;
    let before = sealed(members, 1).await;
    // when member 1 is cloned from it
    let donor = format!("{}:3306", members.address(0));
    let list = format!("SET GLOBAL clone_valid_donor_list = '{donor}'");
    execute(members, 1, &[&list]).await;
    let clone = format!(
        "CLONE INSTANCE FROM 'stateward_clone'@'{}':3306 IDENTIFIED BY '{CLONE}' REQUIRE SSL",
        members.address(0)
    );
    let mut session = members.session(1).await;
    if let Err(mysql_async::Error::Server(error)) = session.query_drop(clone).await {
        panic!("{error}");
    }
    // then it is sealed, under another boot, with that data, and its container was not restarted
    let next = members.other_boot(1, &before).await;
    assert_eq!(sealed(members, 1).await, next);
    assert_eq!(members.restarts(1).await.0, 2);
    assert_eq!(executed(members, 1).await, executed(members, 0).await);
    let rows: Option<u32> = members
        .session(1)
        .await
        .query_first("SELECT COUNT(*) FROM app.rows")
        .await
        .expect("rows");
    assert_eq!(rows, Some(1));
}

/// Transactions that one server has are saved once, as far as they are in its binlogs.
async fn transactions_are_saved(members: &Members) {
    // given transactions that only member 1 has
    let common = executed(members, 1).await;
    let statements = [
        "SET GLOBAL super_read_only = OFF, GLOBAL read_only = OFF",
        "INSERT INTO app.rows VALUES (2)",
        "FLUSH BINARY LOGS",
        "INSERT INTO app.rows VALUES (3)",
        "SET GLOBAL super_read_only = ON",
    ];
    execute(members, 1, &statements).await;
    let errant = executed(members, 1).await.subtract(&common);
    assert_eq!(errant.count(), 2, "FLUSH has none: {errant}");
    // when they are to be saved
    let order = json!({"gtids": errant});
    let saved = until("the transactions to be saved", || async {
        match members.ask(1, SAVE_ERRANT, Some(order.clone())).await {
            Saving::Saved { file } => Some(file),
            Saving::Running => None,
            Saving::Failed { reason } => panic!("{reason}"),
        }
    })
    .await;
    // then they are, also after a restart
    assert!(saved.starts_with("errant/") && saved.ends_with(".sql"), "{saved}");
    let boot = sealed(members, 1).await;
    let _ended: Ended = members.ask(1, END, Some(json!({}))).await;
    members.other_boot(1, &boot).await;
    let state: State = members.ask(1, STATE, None).await;
    assert_eq!(state.saved, [errant]);
    // and what is not in its binlogs is not said to be saved
    let foreign = json!({"gtids": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3"});
    let saving: Saving = members.ask(1, SAVE_ERRANT, Some(foreign)).await;
    assert!(matches!(saving, Saving::Failed { .. }), "{saving:?}");
    let state: State = members.ask(1, STATE, None).await;
    assert!(state.saving.is_some_and(|saving| saving.error.is_some()));
}

/// A primary that ends gracefully tells waiting clients that they succeeded. So it is not told to, while it is writable.
async fn a_writable_server_is_not_stopped_gracefully(members: &Members) {
    // given a replica, which is read-only, and a primary with a commit that waits for an acknowledgement
    let statements = [
        "SET GLOBAL rpl_semi_sync_source_enabled = ON",
        "SET GLOBAL super_read_only = OFF, GLOBAL read_only = OFF",
    ];
    execute(members, 0, &statements).await;
    let mut client = members.log_in(0, "stateward", OPERATOR).await.expect("a session");
    let write = tokio::spawn(async move { client.query_drop("INSERT INTO app.rows VALUES (9)").await });
    until("the commit to wait", || async {
        let mut session = members.session(0).await;
        let query = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_source_wait_sessions'";
        let row: Option<(String, u32)> = session.query_first(query).await.expect("a status");
        (row.expect("a row").1 == 1).then_some(())
    })
    .await;
    // when both pods are deleted
    let pods = members.pods();
    let mut ends = Vec::new();
    for member in [0, 1] {
        let name = format!("{NAME}-{member}");
        let pod = pods
            .delete(&name, &DeleteParams::default())
            .await
            .expect("deleted")
            .left();
        ends.push((name, pod.expect("it ends").metadata.uid));
    }
    let started = Instant::now();
    let gone = async |(name, uid): &(String, Option<String>)| {
        until(&format!("{name} to end"), || async {
            let pod = pods.get_opt(name).await.expect("a reply");
            (pod.and_then(|pod| pod.metadata.uid) != *uid).then_some(())
        })
        .await;
        started.elapsed()
    };
    // then the replica ends at once
    let replica = gone(&ends[1]).await;
    assert!(!write.is_finished(), "the commit still waits");
    let primary = gone(&ends[0]).await;
    assert!(
        replica < Duration::from_secs(15) && primary > Duration::from_secs(15),
        "the replica ended after {replica:?}, the primary after {primary:?}"
    );
    // and nobody tells the client that its commit succeeded
    write.await.expect("no panic").expect_err("no replica acknowledged it");
    members.ready(0).await;
    sealed(members, 0).await;
}
