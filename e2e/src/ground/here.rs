//! Operators in the suite's own process, in the name of the shipped service account and with its rights: every request can be
//! counted on its way, and one of them can be the last.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use embedded_kube::Guest;
use stateward_operator::{Config, Election};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::meter::Meter;

/// Which of them.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    First,
    Second,
}

/// Where they run.
pub(crate) struct Here {
    client: kube::Client,
    pub(crate) meter: Arc<Meter>,
    /// An address of their own in the cluster's network.
    guest: Option<Guest>,
    running: Mutex<[Option<JoinHandle<()>>; 2]>,
}

impl Here {
    /// `client` speaks as the shipped operator does. None of them runs yet. Without a guest they run where the suite does.
    pub(crate) fn new(client: kube::Client, guest: Option<Guest>) -> Self {
        Self {
            client,
            meter: Arc::default(),
            guest,
            running: Mutex::default(),
        }
    }

    /// Their address, where they have one of their own.
    pub(crate) fn address(&self) -> Option<Ipv4Addr> {
        self.guest.as_ref().map(Guest::address)
    }

    /// Starts one, unless it runs.
    pub(crate) fn start(&self, which: Which) {
        let mut running = self.running.lock().expect("no panic while held");
        let this = &mut running[which as usize];
        if this.as_ref().is_none_or(JoinHandle::is_finished) {
            *this = Some(self.run());
        }
    }

    /// Ends one at its next await, wherever that is: as a crash does.
    pub(crate) async fn kill(&self, which: Which) {
        let task = self.running.lock().expect("no panic while held")[which as usize].take();
        if let Some(task) = task {
            task.abort();
            let _ended = task.await;
        }
    }

    fn run(&self) -> JoinHandle<()> {
        let client = self.meter.on(self.client.clone());
        // A new name each time: the lease of a killed one must run out or be taken over as in life.
        let mut election = Election::new(
            "stateward-system",
            "stateward",
            format!("e2e-{:x}", rand::random::<u32>()),
        );
        election.duration = Duration::from_secs(3);
        let config = Config {
            manage_crds: false, // they come with the manifests
            election: Some(election),
            ..Config::default()
        };
        let running = async move {
            if let Err(error) = stateward_operator::run(config, client, CancellationToken::new()).await {
                tracing::error!("the operator ended: {error:#}");
            }
        };
        match &self.guest {
            Some(guest) => guest.spawn(running),
            None => tokio::spawn(running),
        }
    }
}
