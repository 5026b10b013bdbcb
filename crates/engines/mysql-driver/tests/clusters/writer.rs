//! An application that writes one row after the other through the Service of the primary, and remembers those that were
//! acknowledged.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;

/// A statement that takes longer is given up, and the next connection is made.
const LIMIT: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Default)]
struct Seen {
    acknowledged: Vec<u64>,
    last: Option<Instant>,
    longest: Duration,
}

pub(crate) struct Writer {
    seen: Arc<Mutex<Seen>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Writer {
    /// Creates the table and begins to write.
    pub(crate) async fn start(environment: &Environment, cluster: &str) -> Self {
        let address = environment.service(&format!("{cluster}-primary")).await;
        let options: Opts = environment.options(cluster, &address).await.into();
        environment
            .wait_for("the table", async || {
                let mut conn = tokio::time::timeout(LIMIT, Conn::new(options.clone()))
                    .await
                    .ok()?
                    .ok()?;
                let made = conn
                    .query_drop("CREATE TABLE IF NOT EXISTS written (id BIGINT UNSIGNED PRIMARY KEY)")
                    .await;
                made.ok()
            })
            .await;
        let (seen, stop) = (Arc::new(Mutex::new(Seen::default())), CancellationToken::new());
        let task = tokio::spawn(write(options, seen.clone(), stop.clone()));
        Self { seen, stop, task }
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("no panic").acknowledged.len()
    }

    /// The longest time between two acknowledged rows.
    pub(crate) fn longest_gap(&self) -> Duration {
        self.seen.lock().expect("no panic").longest
    }

    /// Waits until so many rows were acknowledged.
    pub(crate) async fn acknowledged(&self, count: usize) {
        let waiting = async {
            while self.count() < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| panic!("waited for {count} acknowledged rows, there are {}", self.count()));
    }

    /// Ends, and returns what was acknowledged.
    pub(crate) async fn stop(self) -> Vec<u64> {
        self.stop.cancel();
        self.task.await.expect("no panic");
        std::mem::take(&mut self.seen.lock().expect("no panic").acknowledged)
    }
}

async fn write(options: Opts, seen: Arc<Mutex<Seen>>, stop: CancellationToken) {
    let mut id = 0;
    while !stop.is_cancelled() {
        let Ok(Ok(mut conn)) = tokio::time::timeout(LIMIT, Conn::new(options.clone())).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while !stop.is_cancelled() {
            // What was not acknowledged may be there all the same: its number is not used again.
            id += 1;
            let insert = conn.query_drop(format!("INSERT INTO written (id) VALUES ({id})"));
            match tokio::time::timeout(LIMIT, insert).await {
                Ok(Ok(())) => note(&seen, id),
                _ => break,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn note(seen: &Mutex<Seen>, id: u64) {
    let mut seen = seen.lock().expect("no panic");
    let now = Instant::now();
    if let Some(last) = seen.last.replace(now) {
        seen.longest = seen.longest.max(now - last);
    }
    seen.acknowledged.push(id);
}
