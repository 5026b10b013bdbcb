//! The walk-through of a replicated MySQL as a StatefulSet, with MariaDB in its place: writing on `mysql-0.mysql`, reading through
//! `mysql-read`, more and fewer replicas, pods that are killed, and an update that begins with one of them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

use super::stateful_set::{Story, ask, claim_uid, client, field, rolled_out};
use crate::environment::{self, Fault};
use crate::test::Test;
use crate::wait::until;

const MYSQL: &str = include_str!("../../../examples/stateful-set/mysql.yaml");
const OLD: &str = "10.11";
const NEW: &str = "11.8";

/// Who asks a server.
#[derive(Clone, Copy)]
enum As {
    Root,
    /// A user without special privileges.
    App,
}

async fn sql(test: &Test, host: &str, user: As, statement: &str) -> Result<String> {
    let who = match user {
        As::Root => "--user=root",
        As::App => "--user=app --password=secret",
    };
    // Values alone, but for statements whose answer is a list of fields.
    let columns = if statement.ends_with("\\G") {
        ""
    } else {
        "--skip-column-names"
    };
    let options = format!("--host={host} {who} --connect-timeout=5 --batch {columns}");
    let line = format!("mysql {options} --execute=\"{statement}\"");
    ask(test, &line).await
}

/// The database, and how many rows were written and acknowledged.
struct Database<'a> {
    test: &'a Test,
    written: usize,
}

impl<'a> Database<'a> {
    async fn create(test: &'a Test) -> Result<Self> {
        let statement = "CREATE DATABASE walk; CREATE TABLE walk.messages (id INT PRIMARY KEY, message VARCHAR(250)); \
                         CREATE USER app@'%' IDENTIFIED BY 'secret'; GRANT ALL ON walk.* TO app@'%'";
        sql(test, "mysql-0.mysql", As::Root, statement).await?;
        Ok(Self { test, written: 0 })
    }

    /// Writes one more row on the primary, as soon as it accepts it.
    async fn write(&mut self) -> Result<()> {
        let row = self.written + 1;
        // A row that was written although its acknowledgement got lost is the same row.
        let statement = format!("REPLACE INTO walk.messages VALUES ({row}, 'hello {row}')");
        until("a write on mysql-0.mysql", 90, async || {
            sql(self.test, "mysql-0.mysql", As::App, &statement).await.map(Some)
        })
        .await?;
        self.written = row;
        Ok(())
    }

    /// Waits until a server has every row, and none twice.
    async fn complete_on(&self, ordinal: usize) -> Result<()> {
        let host = format!("mysql-{ordinal}.mysql");
        let wanted = format!("{0}\t{0}", self.written);
        until(&format!("all rows on {host}"), 90, async || {
            let statement = "SELECT COUNT(*), COALESCE(MAX(id), 0) FROM walk.messages";
            let found = sql(self.test, &host, As::App, statement).await?;
            if found != wanted {
                let status = sql(self.test, &host, As::Root, "SHOW SLAVE STATUS\\G").await?;
                let status: Vec<_> = status
                    .lines()
                    .filter(|line| line.contains("Running") || line.contains("Error"))
                    .collect();
                bail!("{found} instead of {wanted}; {}", status.join(" "));
            }
            Ok(Some(()))
        })
        .await
    }

    async fn complete_on_all(&self, count: usize) -> Result<()> {
        for ordinal in 0..count {
            self.complete_on(ordinal).await?;
        }
        Ok(())
    }

    /// Reads through the Service until each of the members has answered, and no other.
    async fn read_from_all(&self, count: usize) -> Result<()> {
        let expected: BTreeSet<String> = (100..100 + count).map(|id| id.to_string()).collect();
        let one = "mysql --host=mysql-read --user=app --password=secret --batch --skip-column-names \
                   --execute='SELECT @@server_id FROM walk.messages WHERE id = 1'";
        let line = format!("for i in $(seq 30); do {one}; done | sort -u");
        until(&format!("mysql-read to lead to {expected:?}"), 90, async || {
            let found: BTreeSet<String> = ask(self.test, &line).await?.lines().map(str::to_owned).collect();
            ensure!(found == expected, "it leads to {found:?}");
            Ok(Some(()))
        })
        .await
    }

    async fn version(&self, ordinal: usize) -> Result<String> {
        sql(
            self.test,
            &format!("mysql-{ordinal}.mysql"),
            As::Root,
            "SELECT VERSION()",
        )
        .await
    }

    /// Waits until the servers have these versions, in the order of their ordinals.
    async fn versions(&self, versions: &[&str]) -> Result<()> {
        for (ordinal, version) in versions.iter().enumerate() {
            let known = environment::provided_version(&format!("mariadb:{version}"));
            let version = known.map_or_else(|| format!("{version}."), |version| format!("{version}-"));
            until(&format!("mysql-{ordinal} to be {version}"), 60, async || {
                let found = self.version(ordinal).await?;
                ensure!(found.starts_with(&version), "it is {found}");
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }
}

/// What is created first, written on the primary and read everywhere; replicas refuse writes of ordinary users.
async fn begin<'a>(test: &'a Test, story: &Story) -> Result<Database<'a>> {
    test.apply(MYSQL).await?;
    let order = [
        "mysql-0 created",
        "mysql-0 ready",
        "mysql-1 created",
        "mysql-1 ready",
        "mysql-2 created",
        "mysql-2 ready",
    ];
    story.tells(400, &order).await?;
    client(test, "stateward.local/mariadb:10.11", 999).await?;
    let mut database = Database::create(test).await?;
    database.write().await?;
    database.complete_on_all(3).await?;
    Ok(database)
}

/// The walk-through from the first write to three replicas more and fewer.
pub(crate) async fn mysql_written_read_and_scaled(test: &Test) -> Result<String> {
    let story = Story::begin(test, "app=mysql");
    // Given a primary with two replicas, each with its part of the configuration
    let mut database = begin(test, &story).await?;
    database.read_from_all(3).await?;
    for ordinal in 0..3 {
        let host = format!("mysql-{ordinal}.mysql");
        let found = sql(test, &host, As::Root, "SELECT @@server_id, @@log_bin, @@read_only").await?;
        let expected = format!(
            "{}\t{}\t{}",
            100 + ordinal,
            u8::from(ordinal == 0),
            u8::from(ordinal > 0)
        );
        ensure!(found == expected, "{host} has {found}, not {expected}");
    }
    // Then replicas refuse writes
    let refused = sql(
        test,
        "mysql-1.mysql",
        As::App,
        "INSERT INTO walk.messages VALUES (0, 'lost')",
    )
    .await;
    let refused = refused.err().context("a replica accepted a write")?;
    ensure!(format!("{refused:#}").contains("--read-only"), "{refused:#}");
    // When it grows to five, then new members have what was written before them, cloned from the member before
    for _ in 0..3 {
        database.write().await?;
    }
    test.kubectl(&["scale", "statefulset/mysql", "--replicas=5"]).await?;
    story
        .tells(
            400,
            &["mysql-3 created", "mysql-3 ready", "mysql-4 created", "mysql-4 ready"],
        )
        .await?;
    database.write().await?;
    database.complete_on_all(5).await?;
    database.read_from_all(5).await?;
    for ordinal in 1..5 {
        let host = format!("mysql-{ordinal}.mysql");
        let status = sql(test, &host, As::Root, "SHOW SLAVE STATUS\\G").await?;
        ensure!(
            status.contains("Master_Host: mysql-0.mysql"),
            "{host} replicates from\n{status}"
        );
    }
    let log = test.kubectl(&["logs", "mysql-4", "-c", "clone-mysql"]).await?;
    ensure!(
        log.contains("mysql-3.mysql 3307") && log.contains("completed OK!"),
        "mysql-4 was not cloned:\n{log}"
    );
    // When it shrinks, then the last ones stop first, and their claims stay
    let claim = claim_uid(test, "data-mysql-3").await?;
    test.kubectl(&["scale", "statefulset/mysql", "--replicas=3"]).await?;
    story
        .tells(
            240,
            &["mysql-4 stopping", "mysql-4 gone", "mysql-3 stopping", "mysql-3 gone"],
        )
        .await?;
    database.write().await?;
    database.read_from_all(3).await?;
    let claims = field(test, &["pvc"], "{.items[*].metadata.name}").await?;
    ensure!(claims.split(' ').count() == 5, "the claims are {claims}");
    // When one comes back, then with its data: it fetches only what it missed
    test.kubectl(&["scale", "statefulset/mysql", "--replicas=4"]).await?;
    story.tells(240, &["mysql-3 created", "mysql-3 ready"]).await?;
    ensure!(
        claim_uid(test, "data-mysql-3").await? == claim,
        "mysql-3 has another claim"
    );
    let log = test.kubectl(&["logs", "mysql-3", "-c", "clone-mysql"]).await?;
    ensure!(!log.contains("3307"), "mysql-3 was cloned again:\n{log}");
    database.complete_on(3).await?;
    Ok(format!("{} rows on every member, 3 to 5 members", database.written))
}

/// Pods that are killed or deleted come back with their data and replicate again.
pub(crate) async fn mysql_pods_killed(test: &Test) -> Result<String> {
    let story = Story::begin(test, "app=mysql");
    // Given a primary with two replicas
    let mut database = begin(test, &story).await?;
    // When processes of a replica are killed, then its containers start again with the same data
    let before = restarts(test, "mysql-2").await?;
    test.fault(Fault::Kill(test.namespace.clone(), "mysql-2".into()))
        .await?;
    database.write().await?;
    until("containers of mysql-2 to be restarted", 60, async || {
        let now = restarts(test, "mysql-2").await?;
        ensure!(now > before, "{now} restarts");
        Ok(Some(()))
    })
    .await?;
    database.complete_on(2).await?;
    // When a replica's pod is deleted, then the new one has its name and its data
    test.kubectl(&["delete", "pod", "mysql-1"]).await?;
    story
        .tells(
            240,
            &["mysql-1 stopping", "mysql-1 gone", "mysql-1 created", "mysql-1 ready"],
        )
        .await?;
    database.write().await?;
    database.complete_on(1).await?;
    // When the primary is killed, then nothing that it acknowledged is lost, and the replicas find it again
    test.fault(Fault::Kill(test.namespace.clone(), "mysql-0".into()))
        .await?;
    database.write().await?;
    database.complete_on_all(3).await?;
    test.kubectl(&["delete", "pod", "mysql-0"]).await?;
    story
        .tells(
            240,
            &["mysql-0 stopping", "mysql-0 gone", "mysql-0 created", "mysql-0 ready"],
        )
        .await?;
    database.write().await?;
    database.complete_on_all(3).await?;
    database.read_from_all(3).await?;
    Ok(format!("{} rows on every member", database.written))
}

async fn restarts(test: &Test, pod: &str) -> Result<u64> {
    let counts = field(test, &["pod", pod], "{.status.containerStatuses[*].restartCount}").await?;
    counts.split(' ').map(|count| Ok(count.parse::<u64>()?)).sum()
}

/// A new version is tried on one replica, by the partition of the rolling update, before the others get it.
pub(crate) async fn mysql_updated_by_partition(test: &Test) -> Result<String> {
    let story = Story::begin(test, "app=mysql");
    // Given a primary with two replicas of the old version
    let mut database = begin(test, &story).await?;
    let partition = |partition: u8| {
        format!(
            r#"-p={{"spec":{{"updateStrategy":{{"type":"RollingUpdate","rollingUpdate":{{"partition":{partition}}}}}}}}}"#
        )
    };
    // When the image changes with a partition of 2, then only mysql-2 is updated
    test.kubectl(&["patch", "statefulset", "mysql", &partition(2)]).await?;
    let image = format!("*=stateward.local/mariadb:{NEW}");
    test.kubectl(&["set", "image", "statefulset/mysql", &image]).await?;
    story
        .tells(
            240,
            &["mysql-2 stopping", "mysql-2 gone", "mysql-2 created", "mysql-2 ready"],
        )
        .await?;
    database.write().await?;
    database.complete_on_all(3).await?;
    database.versions(&[OLD, OLD, NEW]).await?;
    // Then a pod below the partition that is replaced keeps the old version
    test.kubectl(&["delete", "pod", "mysql-1"]).await?;
    story
        .tells(
            240,
            &["mysql-1 stopping", "mysql-1 gone", "mysql-1 created", "mysql-1 ready"],
        )
        .await?;
    database.versions(&[OLD, OLD, NEW]).await?;
    // When the partition is lifted, then the others follow, the primary last
    test.kubectl(&["patch", "statefulset", "mysql", &partition(0)]).await?;
    let order = [
        "mysql-1 stopping",
        "mysql-1 gone",
        "mysql-1 created",
        "mysql-1 ready",
        "mysql-0 stopping",
        "mysql-0 gone",
        "mysql-0 created",
        "mysql-0 ready",
    ];
    story.tells(400, &order).await?;
    rolled_out(test, "mysql").await?;
    database.write().await?;
    database.complete_on_all(3).await?;
    database.versions(&[NEW, NEW, NEW]).await?;
    // A member that is cloned now is cloned by the tools of the new version.
    test.kubectl(&["scale", "statefulset/mysql", "--replicas=4"]).await?;
    story.tells(240, &["mysql-3 created", "mysql-3 ready"]).await?;
    database.write().await?;
    database.complete_on_all(4).await?;
    Ok(format!("{OLD} to {NEW}, {} rows on every member", database.written))
}
