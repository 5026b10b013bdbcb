//! A client that writes numbered keys continuously through the client service, and afterwards reads back every key that
//! was acknowledged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use stateward_etcd_driver::client::messages::RangeRequest;
use stateward_etcd_driver::client::{Client, Timeouts, Tls};
use tokio_util::sync::CancellationToken;

/// How to reach a cluster: the service's address, and with TLS the certificates and the server name to expect.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// Address and port of the client service.
    pub(crate) address: SocketAddr,
    /// Certificates and server name.
    pub(crate) tls: Option<(Tls, String)>,
}

impl Endpoint {
    /// Connects. Each client is a new connection, which the service may send to another member.
    pub(crate) fn client(&self) -> Result<Client> {
        let timeouts = Timeouts {
            connect: Duration::from_secs(1),
            request: Duration::from_secs(1),
        };
        Ok(Client::new(
            self.address,
            self.tls.as_ref().map(|(tls, name)| (tls, name.as_str())),
            timeouts,
        )?)
    }
}

#[derive(Debug, Default)]
struct Book {
    acknowledged: Vec<u64>,
    last: Option<Instant>,
    longest_gap: Duration,
    errors: u64,
}

/// The running client.
pub(crate) struct Writer {
    endpoint: Arc<Mutex<Endpoint>>,
    book: Arc<Mutex<Book>>,
    redirected: Arc<std::sync::atomic::AtomicBool>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Acknowledged writes. All of them were read back.
    pub(crate) acknowledged: usize,
    /// The longest time without an acknowledgement.
    pub(crate) longest_gap: Duration,
}

impl Written {
    /// Fails if a client waited longer than etcd's own leader election takes in the worst case.
    pub(crate) fn without_a_wait(self) -> Result<Self> {
        anyhow::ensure!(self.longest_gap.as_secs() < 5, "clients waited {:?}", self.longest_gap);
        Ok(self)
    }
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gap = self.longest_gap.as_secs_f64();
        write!(f, "{} writes, longest gap {gap:.1} s", self.acknowledged)
    }
}

impl Writer {
    /// Starts writing.
    pub(crate) fn start(endpoint: Endpoint) -> Self {
        let book = Arc::new(Mutex::new(Book::default()));
        let stop = CancellationToken::new();
        let endpoint = Arc::new(Mutex::new(endpoint));
        let redirected = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let task = tokio::spawn(write(endpoint.clone(), redirected.clone(), book.clone(), stop.clone()));
        Self {
            endpoint,
            book,
            redirected,
            stop,
            task,
        }
    }

    /// The number of acknowledged writes so far.
    pub(crate) fn count(&self) -> usize {
        self.book.lock().expect("no panic while held").acknowledged.len()
    }

    /// Makes the client use another endpoint from now on.
    pub(crate) fn redirect(&self, endpoint: Endpoint) {
        *self.endpoint.lock().expect("no panic while held") = endpoint;
        self.redirected.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Resets the longest gap.
    pub(crate) fn measure_from_here(&self) {
        self.book.lock().expect("no panic while held").longest_gap = Duration::ZERO;
    }

    /// Waits until this many more writes are acknowledged, which shows that the cluster serves.
    pub(crate) async fn writes_more(&self, more: usize, seconds: u64) -> Result<()> {
        let goal = self.count() + more;
        let errors = || self.book.lock().expect("no panic while held").errors;
        crate::wait::until(
            &format!("{more} more acknowledged writes ({} errors so far)", errors()),
            seconds,
            async || Ok((self.count() >= goal).then_some(())),
        )
        .await
    }

    /// Stops writing and reads back every acknowledged key.
    pub(crate) async fn finish(self) -> Result<Written> {
        self.stop.cancel();
        self.task.await.context("the writing client failed")?;
        let endpoint = self.endpoint.lock().expect("no panic while held").clone();
        let (acknowledged, longest_gap) = {
            let book = self.book.lock().expect("no panic while held");
            (book.acknowledged.clone(), book.longest_gap)
        };
        let found = crate::wait::until("the written keys to be read", 30, async || {
            let client = endpoint.client()?.with_request_timeout(Duration::from_secs(10));
            let request = RangeRequest {
                key: b"e2e/".to_vec(),
                range_end: b"e2e0".to_vec(),
                keys_only: true,
                ..RangeRequest::default()
            };
            let keys = client.range(request).await?.kvs.into_iter().map(|pair| pair.key);
            Ok(Some(keys.collect::<std::collections::HashSet<_>>()))
        })
        .await?;
        let lost: Vec<_> = acknowledged
            .iter()
            .filter(|number| !found.contains(&key(**number)))
            .collect();
        if !lost.is_empty() {
            bail!(
                "{} of {} acknowledged writes are LOST, the first is number {}",
                lost.len(),
                acknowledged.len(),
                lost[0]
            );
        }
        if acknowledged.is_empty() {
            bail!("not one write was acknowledged: the scenario proves nothing");
        }
        Ok(Written {
            acknowledged: acknowledged.len(),
            longest_gap,
        })
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("e2e/{number:010}").into_bytes()
}

async fn write(
    endpoint: Arc<Mutex<Endpoint>>,
    redirected: Arc<std::sync::atomic::AtomicBool>,
    book: Arc<Mutex<Book>>,
    stop: CancellationToken,
) {
    let mut client: Option<Client> = None;
    for number in 0.. {
        if stop.is_cancelled() {
            return;
        }
        if client.is_none() || redirected.swap(false, std::sync::atomic::Ordering::SeqCst) {
            let endpoint = endpoint.lock().expect("no panic while held").clone();
            client = endpoint.client().ok();
        }
        let Some(connected) = &client else { continue };
        let answer = tokio::select! {
            answer = connected.put(key(number), number.to_string()) => answer,
            () = stop.cancelled() => return,
        };
        let now = Instant::now();
        {
            let mut book = book.lock().expect("no panic while held");
            match answer {
                Ok(_) => {
                    book.acknowledged.push(number);
                    if let Some(last) = book.last.replace(now) {
                        book.longest_gap = book.longest_gap.max(now - last);
                    }
                }
                Err(_) => {
                    book.errors += 1;
                    client = None;
                }
            }
        }
        // A steady, modest load: the tests are about safety, not throughput.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
