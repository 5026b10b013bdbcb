//! Operators that run in the suite's own process, with the shipped service account and its permissions. Every request
//! can be counted, and the operator can be stopped after any of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stateward_operator::{Config, Election, Reach};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::meter::Meter;

/// Which operator.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    First,
    Second,
}

/// The operators of this process.
pub(crate) struct InProcess {
    client: kube::Client,
    pub(crate) meter: Arc<Meter>,
    pub(crate) reach: Reach,
    running: Mutex<[Option<JoinHandle<()>>; 2]>,
}

impl InProcess {
    /// `client` has the identity of the shipped operator. No operator runs yet.
    pub(crate) fn new(client: kube::Client) -> Self {
        Self {
            client,
            meter: Arc::default(),
            reach: Reach::default(),
            running: Mutex::default(),
        }
    }

    /// Starts an operator unless it is running.
    pub(crate) fn start(&self, which: Which) {
        let mut running = self.running.lock().expect("no panic while held");
        let this = &mut running[which as usize];
        if this.as_ref().is_none_or(JoinHandle::is_finished) {
            *this = Some(self.run());
        }
    }

    /// Aborts an operator at its next await point, like a crash.
    pub(crate) async fn kill(&self, which: Which) {
        let task = self.running.lock().expect("no panic while held")[which as usize].take();
        if let Some(task) = task {
            task.abort();
            let _ended = task.await;
        }
    }

    fn run(&self) -> JoinHandle<()> {
        let client = self.meter.on(self.client.clone());
        // A new identity each time: the lease of a killed operator must expire or be acquired as in production.
        let mut election = Election::new(
            "stateward-system",
            "stateward",
            format!("e2e-{:x}", rand::random::<u32>()),
        );
        election.duration = Duration::from_secs(3);
        let config = Config {
            manage_crds: false, // they come with the manifests
            election: Some(election),
            reach: self.reach.clone(),
            ..Config::default()
        };
        tokio::spawn(async move {
            if let Err(error) = stateward_operator::run(config, client, CancellationToken::new()).await {
                tracing::error!("the operator ended: {error:#}");
            }
        })
    }
}
