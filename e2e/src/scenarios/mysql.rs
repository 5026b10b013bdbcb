//! MySQL: a primary and replicas that lose no acknowledged row, whatever fails.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use serde_json::json;
use stateward_mysql::api::{MemberRole, MySQLClusterStatus};

use crate::environment::Fault;
use crate::mysql::describe;
use crate::test::Test;
use crate::wait::until;

fn replicas(status: &MySQLClusterStatus) -> Vec<String> {
    let members = status.members.iter();
    let replicas = members.filter(|member| member.role == MemberRole::Replica);
    replicas.map(|member| member.name.clone()).collect()
}

/// Waits until another member is the primary.
async fn another_primary(test: &Test, name: &str, old: &str) -> Result<MySQLClusterStatus> {
    let changed = |status: &MySQLClusterStatus| !status.primary.is_empty() && status.primary != old;
    test.mysql_until(name, "another primary", 90, changed).await
}

async fn kill(test: &Test, pod: &str) -> Result<()> {
    test.fault(Fault::Kill(test.namespace.clone(), pod.to_owned())).await
}

pub(crate) async fn mysql_create(test: &Test) -> Result<String> {
    // given the fewest words that make a cluster
    let started = Instant::now();
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let seconds = started.elapsed().as_secs_f64();
    // then one of three acknowledges each write, and the first is the primary
    ensure!(status.acks == 1, "acks is {}", status.acks);
    ensure!(status.primary == "orders-0", "the primary is {}", status.primary);
    // and people find what they need to connect
    let secrets: Api<Secret> = Api::namespaced(test.client.clone(), &test.namespace);
    let app = secrets.get("orders-app").await?.data.unwrap_or_default();
    let app: BTreeMap<_, _> = app
        .into_iter()
        .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
        .collect();
    let keys: Vec<_> = app.keys().map(String::as_str).collect();
    ensure!(
        keys == ["database", "host", "password", "port", "uri", "username"],
        "keys of orders-app: {keys:?}"
    );
    ensure!(
        app["host"] == format!("orders-primary.{}.svc", test.namespace),
        "host is {}",
        app["host"]
    );
    // and rows written at the primary are read at orders-read, which refuses writes
    let writer = test.mysql_writer("orders").await?;
    let reads = test.service_address("orders-read").await?;
    until("a row at orders-read", 30, async || {
        let count = test
            .mysql_value("orders", &reads, "SELECT CAST(COUNT(*) AS CHAR) FROM written")
            .await?;
        Ok((count != "0").then_some(()))
    })
    .await?;
    let mut conn = Conn::new(test.mysql_options("orders", &reads).await?).await?;
    let refused = conn.query_drop("INSERT INTO written (id) VALUES (0)").await;
    conn.disconnect().await?;
    ensure!(
        refused
            .as_ref()
            .is_err_and(|error| error.to_string().contains("read-only")),
        "a replica replied {refused:?} to a write"
    );
    // and server IDs follow the ordinals
    for ordinal in 0..3 {
        let address = test.pod_address(&format!("orders-{ordinal}")).await?;
        let id = test
            .mysql_value("orders", &address, "SELECT CAST(@@server_id AS CHAR)")
            .await?;
        ensure!(id == (100 + ordinal).to_string(), "orders-{ordinal} has server ID {id}");
    }
    // and no password is in a spec
    let pods = test.pods().list(&ListParams::default()).await?;
    let text =
        serde_json::to_string(&pods.items)? + &serde_json::to_string(&test.mysql_clusters().get("orders").await?)?;
    ensure!(
        !text.contains(&app["password"]),
        "the password is in a pod or in the status"
    );
    let written = test.mysql_finish(writer).await?;
    // when the cluster is deleted, everything goes with it
    test.mysql_clusters().delete("orders", &DeleteParams::default()).await?;
    test.pods_gone().await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(test.client.clone(), &test.namespace);
    until("the claims to be deleted", 60, async || {
        let left = claims.list(&ListParams::default()).await?.items;
        ensure!(left.is_empty(), "{} are left", left.len());
        Ok(Some(()))
    })
    .await?;
    Ok(format!("ready after {seconds:.1} s; {written}"))
}

pub(crate) async fn mysql_kill_the_primary(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    // when the primary is killed
    writer.measure_from_here();
    kill(test, &status.primary).await?;
    // then another one takes writes, and the old one joins again
    let after = another_primary(test, "orders", &status.primary).await?;
    writer.writes_more(50, 60).await?;
    test.mysql_settled("orders", 120).await?;
    ensure!(after.epoch > status.epoch, "the epoch stayed {}", after.epoch);
    let written = test.mysql_finish(writer).await?;
    Ok(format!("{} took over; {written}", after.primary))
}

pub(crate) async fn mysql_delete_the_primary_pod(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    // when the pod of the primary is deleted, as an eviction does
    writer.measure_from_here();
    test.delete_pod(&status.primary).await?;
    // then another one takes writes before, and the pod comes back as a replica
    another_primary(test, "orders", &status.primary).await?;
    writer.writes_more(50, 60).await?;
    test.mysql_settled("orders", 180).await?;
    let written = test.mysql_finish(writer).await?;
    Ok(written.to_string())
}

pub(crate) async fn mysql_empty_cluster_fails_over(test: &Test) -> Result<String> {
    // given a cluster into which nobody wrote
    let status = test.mysql("orders", json!({"size": 3})).await?;
    // when its primary is killed
    kill(test, &status.primary).await?;
    // then another one takes writes
    another_primary(test, "orders", &status.primary).await?;
    let writer = test.mysql_writer("orders").await?;
    test.mysql_settled("orders", 120).await?;
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_replica_lost_and_then_the_primary(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    // given a replica whose volume is lost
    let lost = replicas(&status).pop().expect("two replicas");
    lose_volume(test, &lost).await?;
    // when the remaining acknowledger took over what only the lost one might have held, and the primary is killed
    test.mysql_until("orders", "the lost member to leave the acknowledgers", 120, |status| {
        !status.ackers.contains(&lost)
    })
    .await?;
    writer.writes_more(20, 60).await?;
    kill(test, &status.primary).await?;
    // then nothing is lost
    another_primary(test, "orders", &status.primary).await?;
    writer.writes_more(20, 120).await?;
    test.mysql_settled("orders", 240).await?;
    Ok(test.mysql_finish(writer).await?.to_string())
}

async fn lose_volume(test: &Test, pod: &str) -> Result<()> {
    let lost = Fault::LoseVolume(test.namespace.clone(), format!("data-{pod}"));
    test.fault(lost).await?;
    kill(test, pod).await
}

pub(crate) async fn mysql_lost_volumes(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    // when a replica loses its data, it is cloned anew
    let replica = replicas(&status).pop().expect("two replicas");
    writer.measure_from_here();
    let started = Instant::now();
    lose_volume(test, &replica).await?;
    recloned(test, &status, &replica).await?;
    let of_replica = started.elapsed().as_secs_f64();
    // when the primary loses its data, another one takes over first
    let started = Instant::now();
    lose_volume(test, &status.primary).await?;
    let now = another_primary(test, "orders", &status.primary).await?;
    writer.writes_more(20, 60).await?;
    recloned(test, &now, &status.primary).await?;
    let of_primary = started.elapsed().as_secs_f64();
    let written = test.mysql_finish(writer).await?;
    Ok(format!(
        "replica whole after {of_replica:.1} s, primary after {of_primary:.1} s; {written}"
    ))
}

/// Waits until a member that lost its data has another server's identity and the cluster is whole.
async fn recloned(test: &Test, before: &MySQLClusterStatus, member: &str) -> Result<()> {
    let uuid = |status: &MySQLClusterStatus| {
        let found = status.members.iter().find(|one| one.name == member);
        found.map(|one| one.server_uuid.clone()).unwrap_or_default()
    };
    let old = uuid(before);
    let what = format!("{member} to be cloned anew");
    test.mysql_until("orders", &what, 240, |status| {
        let new = uuid(status);
        !new.is_empty() && new != old && crate::mysql::is_whole(status, 3)
    })
    .await
    .map(drop)
}

pub(crate) async fn mysql_all_pods_killed(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    // when every server is killed at once
    for member in &status.members {
        kill(test, &member.name).await?;
    }
    // then the cluster takes writes again, with all that was acknowledged
    writer.writes_more(20, 120).await?;
    test.mysql_settled("orders", 180).await?;
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_scale_under_load(test: &Test) -> Result<String> {
    test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    writer.measure_from_here();
    // when the cluster grows and shrinks, also to an even size
    let mut times = Vec::new();
    for (size, acks) in [(5, 2), (2, 1)] {
        let started = Instant::now();
        test.kubectl(&["scale", "mysql/orders", &format!("--replicas={size}")])
            .await?;
        let status = test.mysql_settled("orders", 300).await?;
        ensure!(status.acks == acks, "{size} members, {} acknowledge", status.acks);
        times.push(format!("{size} members after {:.1} s", started.elapsed().as_secs_f64()));
    }
    // then the claims of who left are gone, and no write waited
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(test.client.clone(), &test.namespace);
    until("the claims to be deleted", 60, async || {
        let mut left: Vec<_> = claims.list(&ListParams::default()).await?.items;
        left.retain(|claim| claim.metadata.deletion_timestamp.is_none());
        ensure!(left.len() == 2, "{} claims are there", left.len());
        Ok(Some(()))
    })
    .await?;
    let written = test.mysql_finish(writer).await?;
    ensure!(written.longest_gap().as_secs() < 3, "clients waited: {written}");
    Ok(format!("{}; {written}", times.join(", ")))
}

pub(crate) async fn mysql_switchover_under_load(test: &Test) -> Result<String> {
    test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    writer.measure_from_here();
    // when the spec prefers another primary
    test.mysql_edit("orders", json!({"spec": {"primary": {"prefer": 1}}}))
        .await?;
    test.mysql_until("orders", "orders-1 to be the primary", 60, |status| {
        status.primary == "orders-1" && crate::mysql::is_whole(status, 3)
    })
    .await?;
    writer.writes_more(20, 30).await?;
    // and it comes back after a failover
    kill(test, "orders-1").await?;
    another_primary(test, "orders", "orders-1").await?;
    test.mysql_until("orders", "orders-1 to be the primary again", 120, |status| {
        status.primary == "orders-1" && crate::mysql::is_whole(status, 3)
    })
    .await?;
    writer.writes_more(20, 30).await?;
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_config_by_role(test: &Test) -> Result<String> {
    let config = json!({"all": {"max_connections": 120}, "replica": {"long_query_time": 3}});
    let status = test.mysql("orders", json!({"size": 2, "config": config})).await?;
    let replica = replicas(&status).pop().expect("a replica");
    let variable = async |pod: &str, name: &str| {
        let address = test.pod_address(pod).await?;
        let statement = format!("SELECT CAST(@@global.{name} AS CHAR)");
        test.mysql_value("orders", &address, &statement).await
    };
    ensure!(variable(&status.primary, "max_connections").await? == "120");
    let uids = test.mysql_pod_uids("orders").await?;
    let writer = test.mysql_writer("orders").await?;
    // when dynamic variables change, no pod restarts
    let config =
        json!({"all": {"max_connections": 130}, "replica": {"long_query_time": 4}, "primary": {"long_query_time": 2}});
    test.mysql_edit("orders", json!({"spec": {"config": config}})).await?;
    let expected = [
        (status.primary.as_str(), "max_connections", "130"),
        (status.primary.as_str(), "long_query_time", "2.000000"),
        (replica.as_str(), "max_connections", "130"),
        (replica.as_str(), "long_query_time", "4.000000"),
    ];
    for (pod, name, value) in expected {
        until(&format!("{name} of {pod} to be {value}"), 60, async || {
            let now = variable(pod, name).await?;
            ensure!(now == value, "it is {now}");
            Ok(Some(()))
        })
        .await?;
    }
    ensure!(test.mysql_pod_uids("orders").await? == uids, "a pod was replaced");
    // when one changes that needs a restart, members roll one by one, the primary last
    let config = json!({"all": {"performance_schema_max_table_instances": 333}});
    test.mysql_edit("orders", json!({"spec": {"config": config}})).await?;
    until("all pods to be new", 240, async || {
        let now = test.mysql_pod_uids("orders").await?;
        ensure!(now.iter().all(|pod| !uids.contains(pod)), "{now:?}");
        Ok(Some(()))
    })
    .await?;
    test.mysql_settled("orders", 180).await?;
    for member in ["orders-0", "orders-1"] {
        let now = variable(member, "performance_schema_max_table_instances").await?;
        ensure!(now == "333", "{member} has {now}");
    }
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_bad_image_then_revert(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    let uids = test.mysql_pod_uids("orders").await?;
    // when the spec names an image that is not there, for members from the second on
    let bad = json!({"spec": {"repository": "stateward.local/nobody-made-this", "update": {"partition": 1}}});
    test.mysql_edit("orders", bad).await?;
    // then the roll halts at its first member, the replica with the highest ordinal
    test.mysql_until("orders", "the roll to halt with a reason", 120, |status| {
        let mut conditions = status.conditions.iter();
        conditions.any(|one| one.type_ == "Degraded" && one.message.contains("orders-2"))
    })
    .await?;
    let now = test.mysql_pod_uids("orders").await?;
    let changed: Vec<_> = now
        .iter()
        .filter(|pod| !uids.contains(pod))
        .map(|(name, _)| name.as_str())
        .collect();
    ensure!(changed == ["orders-2"], "pods that were replaced: {changed:?}");
    writer.writes_more(20, 30).await?;
    // and reverting heals it without touching another
    test.mysql_edit("orders", json!({"spec": {"repository": "stateward.local/mysql"}}))
        .await?;
    let healed = test.mysql_settled("orders", 180).await?;
    ensure!(healed.primary == status.primary, "{}", describe(&healed));
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_invalid_specs_are_rejected(test: &Test) -> Result<String> {
    let cases = [
        (json!({"size": 0}), "size"),
        (json!({"size": 10}), "size"),
        (
            json!({"size": 3, "config": {"all": {"super_read_only": "OFF"}}}),
            "super_read_only",
        ),
        (
            json!({"size": 3, "config": {"replica": {"rpl-semi-sync-replica-enabled": "ON"}}}),
            "rpl",
        ),
        (json!({"size": 3, "primary": {"prefer": 3}}), "prefer"),
        (json!({"size": 3, "durability": {"acks": 3}}), "acks"),
    ];
    for (spec, field) in &cases {
        let Err(error) = test.mysql_create("bad", spec.clone()).await else {
            bail!("{spec} was accepted");
        };
        ensure!(format!("{error:#}").contains(field), "{spec}: {error:#}");
    }
    // what cannot change is refused by name
    test.mysql_create("orders", json!({"size": 1, "serverIDBase": 100}))
        .await?;
    let Err(error) = test.mysql_edit("orders", json!({"spec": {"serverIDBase": 200}})).await else {
        bail!("serverIDBase changed");
    };
    ensure!(format!("{error:#}").contains("serverIDBase"), "{error:#}");
    Ok(format!("{} specs rejected", cases.len() + 1))
}

pub(crate) async fn mysql_cut_off_primary(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    writer.measure_from_here();
    // when the operator and the other members do not reach the primary any more
    for member in &status.members {
        if member.name != status.primary {
            let cut = Fault::Cut(test.namespace.clone(), status.primary.clone(), member.name.clone());
            test.fault(cut).await?;
        }
    }
    let cut = Fault::CutOperator(test.namespace.clone(), status.primary.clone());
    test.fault(cut).await?;
    // then another one takes writes
    another_primary(test, "orders", &status.primary).await?;
    writer.writes_more(20, 90).await?;
    // and the old one joins once it is reached again
    test.fault(Fault::Heal).await?;
    test.mysql_settled("orders", 180).await?;
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_operator_killed_during_a_failover(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    // when the primary dies and the operator dies in the middle of the failover
    kill(test, &status.primary).await?;
    test.mysql_until("orders", "the failover to be recorded", 60, |now| {
        now.failover.is_some() || now.primary != status.primary
    })
    .await?;
    test.environment.kill_operator().await?;
    test.environment.start_operator().await?;
    // then the next one completes it
    another_primary(test, "orders", &status.primary).await?;
    writer.writes_more(20, 90).await?;
    test.mysql_settled("orders", 180).await?;
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_operator_killed_after_every_write(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    let meter = test.environment.meter().context("nothing is counted here")?;
    // given operators that each crash right after their first write
    meter.fall_after(1);
    // when the primary loses its data, so that it cannot take writes again by itself
    lose_volume(test, &status.primary).await?;
    let mut lives = 0;
    let healed = async {
        let taken_over = |now: &MySQLClusterStatus| !now.primary.is_empty() && now.primary != status.primary;
        test.mysql_until("orders", "another primary", 300, taken_over).await?;
        test.mysql_settled("orders", 400).await
    };
    tokio::pin!(healed);
    let result = loop {
        tokio::select! {
            healed = &mut healed => break healed,
            () = meter.fell() => {}
        }
        lives += 1;
        meter.fall_after(1);
        test.environment.kill_operator().await?;
        test.environment.start_operator().await?;
    };
    meter.fall_after(0);
    test.environment.kill_operator().await?;
    test.environment.start_operator().await?;
    result?;
    writer.writes_more(20, 60).await?;
    let written = test.mysql_finish(writer).await?;
    Ok(format!("{lives} operators with one write each; {written}"))
}

pub(crate) async fn mysql_former_primary_with_own_transactions(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let old = status.primary.clone();
    let writer = test.mysql_writer("orders").await?;
    // given a primary that is cut off with a write that no replica has
    for member in replicas(&status) {
        let cut = Fault::Cut(test.namespace.clone(), old.clone(), member);
        test.fault(cut).await?;
    }
    let address = test.pod_address(&old).await?;
    let options = test.mysql_options("orders", &address).await?;
    let lonely = tokio::spawn(async move {
        let mut conn = Conn::new(options).await?;
        // No replica acknowledges it: it waits until the connection ends.
        conn.query_drop("CREATE TABLE lonely (id INT PRIMARY KEY)").await
    });
    let cut = Fault::CutOperator(test.namespace.clone(), old.clone());
    test.fault(cut).await?;
    another_primary(test, "orders", &old).await?;
    writer.writes_more(20, 90).await?;
    // when it is reached again
    kill(test, &old).await?;
    test.fault(Fault::Heal).await?;
    // then its transaction was not acknowledged, is saved, and the member is cloned anew
    let said = lonely.await?;
    ensure!(said.is_err(), "a write that no replica has was acknowledged");
    let whole = test.mysql_settled("orders", 240).await?;
    let address = test.pod_address(&old).await?;
    let table = test
        .mysql_value(
            "orders",
            &address,
            "SELECT table_name FROM information_schema.tables WHERE table_name = 'lonely'",
        )
        .await;
    ensure!(table.is_err(), "{old} still has the table that no replica has");
    ensure!(whole.quarantine.is_empty(), "{:?}", whole.quarantine);
    let events = test
        .kubectl(&[
            "get",
            "events",
            "--field-selector=involvedObject.name=orders",
            "-o",
            "jsonpath={.items[*].reason}",
        ])
        .await?;
    ensure!(events.contains("TransactionsSaved"), "events: {events}");
    Ok(test.mysql_finish(writer).await?.to_string())
}

pub(crate) async fn mysql_delete_claim_and_pod_of_replica(test: &Test) -> Result<String> {
    let status = test.mysql("orders", json!({"size": 3})).await?;
    let writer = test.mysql_writer("orders").await?;
    let replica = replicas(&status).pop().expect("a replica");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(test.client.clone(), &test.namespace);
    let claim = format!("data-{replica}");
    let uid = claims.get(&claim).await?.uid();
    // when somebody deletes a replica's claim and pod
    claims.delete(&claim, &DeleteParams::default()).await?;
    test.delete_pod(&replica).await?;
    // then it gets another one, and is cloned from the other replica
    until("another claim", 120, async || {
        let now = claims.get_opt(&claim).await?;
        Ok(now.filter(|now| now.uid() != uid))
    })
    .await?;
    test.mysql_settled("orders", 240).await?;
    Ok(test.mysql_finish(writer).await?.to_string())
}
