//! Leader election: one operator acts, the others wait with warm caches.
//!
//! A Lease is taken and renewed by replacing it with the resourceVersion that was read: a conflict means that somebody
//! else was faster. Two operators never both act: the holder counts itself as such only until a margin before others
//! may take over, measured from before it asked for the renewal, and every effect looks at that first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Leader election by a Lease.
#[derive(Clone, Debug)]
pub struct Election {
    /// Where the Lease is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are: unique among operators.
    pub identity: String,
    /// For how long a Lease that is not renewed counts.
    pub duration: Duration,
}

impl Election {
    /// An election with the usual times.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
        }
    }
}

/// Until when this operator may act.
#[derive(Clone)]
pub struct Leadership(Arc<watch::Sender<Option<Instant>>>);

impl Leadership {
    /// Nobody may act yet.
    pub fn none() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// There is no other operator.
    pub fn alone() -> Self {
        let far = Instant::now() + Duration::from_secs(60 * 60 * 24 * 365 * 30);
        Self(Arc::new(watch::Sender::new(Some(far))))
    }

    /// This operator may act now.
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until this operator may act.
    pub async fn begins(&self) {
        let mut changes = self.0.subscribe();
        while !self.holds() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn until(&self, until: Option<Instant>) {
        self.0.send_replace(until);
    }
}

/// What was last seen of another's Lease, and since when by our own clock: clocks of others are not trusted.
struct Seen {
    version: Option<String>,
    since: Instant,
}

/// Takes the Lease whenever it is free and keeps it, until told to stop; then gives it back.
pub async fn run(client: Client, election: Election, leadership: Leadership, stop: CancellationToken) {
    let api: Api<Lease> = Api::namespaced(client, &election.namespace);
    let renew_every = election.duration / 5;
    let margin = election.duration / 3;
    let mut seen: Option<Seen> = None;
    loop {
        let began = Instant::now();
        let attempt = tokio::time::timeout(renew_every, attempt(&api, &election, &mut seen));
        let taken = tokio::select! {
            () = stop.cancelled() => break,
            taken = attempt => taken,
        };
        match taken {
            Ok(Ok(true)) => {
                if !leadership.holds() {
                    tracing::info!(identity = election.identity, "this operator leads");
                }
                leadership.until(Some(began + election.duration - margin));
            }
            Ok(Ok(false)) => {
                if leadership.holds() {
                    tracing::warn!("another operator leads; this one waits");
                }
                leadership.until(None);
            }
            Ok(Err(error)) => tracing::warn!(%error, "the Lease could not be renewed; trying again"),
            Err(_) => tracing::warn!("the Lease could not be renewed in time; trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(renew_every) => {}
        }
    }
    let held = leadership.holds();
    leadership.until(None);
    if held {
        let _ = tokio::time::timeout(renew_every, release(&api, &election)).await;
    }
}

/// One try to take or renew. `false`: another holds it.
async fn attempt(api: &Api<Lease>, election: &Election, seen: &mut Option<Seen>) -> kube::Result<bool> {
    let Some(mut lease) = api.get_opt(&election.name).await? else {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(election.name.clone()),
                namespace: Some(election.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(ours(election, None)),
        };
        return won(api.create(&PostParams::default(), &lease).await);
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder != election.identity && !holder.is_empty() {
        let version = lease.metadata.resource_version.clone();
        let theirs = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let patience = Duration::from_secs(theirs).max(election.duration);
        match seen {
            Some(seen) if seen.version == version => {
                if seen.since.elapsed() < patience {
                    return Ok(false);
                }
            }
            _ => {
                *seen = Some(Seen {
                    version,
                    since: Instant::now(),
                });
                return Ok(false);
            }
        }
    }
    lease.spec = Some(ours(election, Some(&spec)));
    won(api.replace(&election.name, &PostParams::default(), &lease).await)
}

fn won(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn ours(election: &Election, old: Option<&LeaseSpec>) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    let renewed = old.filter(|old| old.holder_identity.as_deref() == Some(&election.identity));
    LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(election.duration.as_secs()).unwrap_or(15)),
        acquire_time: renewed
            .and_then(|old| old.acquire_time.clone())
            .or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(
            old.and_then(|old| old.lease_transitions).unwrap_or(0) + i32::from(old.is_some() && renewed.is_none()),
        ),
        ..LeaseSpec::default()
    }
}

/// Gives the Lease back, so that the next operator need not wait for it to end.
async fn release(api: &Api<Lease>, election: &Election) -> kube::Result<()> {
    let Some(mut lease) = api.get_opt(&election.name).await? else {
        return Ok(());
    };
    if let Some(spec) = &mut lease.spec
        && spec.holder_identity.as_deref() == Some(&election.identity)
    {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        api.replace(&election.name, &PostParams::default(), &lease).await?;
    }
    Ok(())
}
