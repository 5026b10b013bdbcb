//! Operators that run in the suite's own process, with the shipped service account and its permissions. Every request
//! can be counted, and the operator can be stopped after any of them.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use embedded_kube::Guest;
use stateward::Config;
use stateward_runtime::{Election, operator};
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
    /// An address of their own in the cluster's network.
    guest: Option<Guest>,
    running: Mutex<[Option<JoinHandle<()>>; 2]>,
}

impl InProcess {
    /// `client` has the identity of the shipped operator. No operator runs yet. Without a guest,
    /// operators run in the suite's own network.
    pub(crate) fn new(client: kube::Client, guest: Option<Guest>) -> Self {
        Self {
            client,
            meter: Arc::default(),
            guest,
            running: Mutex::default(),
        }
    }

    /// The operators' own address, if they have one.
    pub(crate) fn address(&self) -> Option<Ipv4Addr> {
        self.guest.as_ref().map(Guest::address)
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
            operator: operator::Config {
                manage_crds: false, // they come with the manifests
                election: Some(election),
                ..operator::Config::default()
            },
            ..Config::default()
        };
        let running = async move {
            if let Err(error) = stateward::run(config, client, CancellationToken::new()).await {
                tracing::error!("the operator ended: {error:#}");
            }
        };
        match &self.guest {
            Some(guest) => guest.spawn(running),
            None => tokio::spawn(running),
        }
    }
}
