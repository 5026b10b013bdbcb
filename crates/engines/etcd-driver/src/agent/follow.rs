//! Continuous backup: every change is watched and written to the store in segments, until stopped.
//!
//! How far that leads in time is certified by linearizable reads (`certified.rs`), and a watch ends when its member has lost its
//! leader: a member that is cut off would be quiet for ever.
//!
//! Where it goes on after a restart is read from the store itself. What cannot be had any more, because the history was
//! compacted before it was read, is a gap: it is said, and a snapshot taken after it makes a new beginning.

use std::time::Duration;

use crate::client::messages::{Event, WatchResponse};
use bytes::Bytes;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prost::Message;
use stateward_backup::names::{self, Segment};
use stateward_backup::pack;
use stateward_etcd::api::agent::{Failure, FailureReason, FollowTask, Progress};
use stateward_etcd::api::etcd_backup::RestorablePoint;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use crate::agent::Folders;
use crate::agent::certified::{self, Certified};
use crate::agent::chain::{self, Reached};
use crate::agent::failure::{failure, of_etcd, of_key, of_put, of_store};
use crate::agent::inspect::snapshots;
use crate::agent::place::Opening;
use crate::agent::progress::{Board, serve};
use crate::agent::segment::{Change, Head, write};
use crate::agent::source::{Member, best};
use crate::agent::stop::Stop;

/// What waits in memory at most, but for a single change that is larger.
const LARGEST: usize = 4 << 20;
/// How long a change waits for others.
const LONGEST: Duration = Duration::from_secs(1);
/// How often a quiet cluster is asked whether it is still quiet, and how often that is written down.
const QUIET: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

pub(crate) async fn run(task: &FollowTask, folders: &Folders, stop: &Stop) -> Result<(), Failure> {
    let opening = Opening::new(&task.place, folders)?;
    let board = Board::default();
    let mut follower = Follower {
        task,
        folders,
        opening,
        board: board.clone(),
        cluster: 0,
        covered: 0,
        last_time: Timestamp::UNIX_EPOCH,
        certified: Vec::new(),
        needs_snapshot: None,
        waiting: Vec::new(),
        size: 0,
        since: None,
    };
    let work = async {
        follower.look_around().await?;
        follower.follow().await
    };
    tokio::select! {
        ended = stop.guard(work) => ended,
        failed = serve(board, folders.listen) => failed,
    }
}

struct Follower<'a> {
    task: &'a FollowTask,
    folders: &'a Folders,
    opening: Opening,
    board: Board,
    /// The cluster that the last segment is of; zero for none yet.
    cluster: u64,
    /// Everything up to this revision is in the store, or was not to be had.
    covered: i64,
    /// Never goes back, whatever the clock does.
    last_time: Timestamp,
    /// What is certain of the times of revisions from the last one in the store on.
    certified: Vec<Certified>,
    /// After a gap: only a snapshot of at least this revision can be followed by what is streamed.
    needs_snapshot: Option<i64>,
    waiting: Vec<Change>,
    size: usize,
    since: Option<Instant>,
}

impl Follower<'_> {
    /// Where the store says that we are.
    async fn look_around(&mut self) -> Result<(), Failure> {
        let segments = chain::segments(&self.opening.store).await?;
        self.covered = self.task.after_revision;
        if let Some(last) = segments.iter().max_by_key(|segment| segment.last) {
            let (head, _) = chain::read(&self.opening, last).await?;
            self.cluster = head.cluster;
            self.covered = last.last;
            self.last_time = last.time;
            let start = chain::start_of_last_run(&segments).unwrap_or(last.first);
            self.needs_snapshot = Some(start - 1);
            self.look_for_snapshot().await?;
            self.certified = head.certified;
            let reached = chain::reached(&self.opening)
                .await
                .and_then(|reached| reached.certified());
            if let Some(reached) = reached {
                certified::add(&mut self.certified, reached);
            }
            self.tell();
        }
        info!("going on after revision {}", self.covered);
        Ok(())
    }

    /// Whether there is a snapshot that the changes follow.
    async fn look_for_snapshot(&mut self) -> Result<(), Failure> {
        let Some(needed) = self.needs_snapshot else {
            return Ok(());
        };
        let found = snapshots(&self.opening.store).await?;
        let fits = self.task.after_revision >= needed || found.iter().any(|snapshot| snapshot.revision >= needed);
        if fits {
            self.needs_snapshot = None;
            self.board.change(|said| said.problem.clear());
        } else {
            self.board.change(|said| {
                said.latest = None;
                said.problem = format!(
                    "changes before revision {needed} were compacted before they were streamed: a new snapshot is needed"
                );
            });
        }
        Ok(())
    }

    /// Tells how far we are, unless no snapshot leads there: the last revision in the store whose time is certain.
    fn tell(&self) {
        let mut known = self.certified.iter().rev();
        let Some(latest) = known.find(|pair| pair.revision <= self.covered) else {
            return;
        };
        if self.needs_snapshot.is_none() {
            let time = Timestamp::from_millisecond(latest.complete).ok().map(Time);
            self.board.change(|said| {
                *said = Progress {
                    latest: Some(RestorablePoint {
                        revision: latest.revision,
                        time,
                    }),
                    problem: String::new(),
                }
            });
        }
    }

    /// For ever: what fails is said and tried again.
    async fn follow(&mut self) -> Result<(), Failure> {
        let mut failures = 0;
        loop {
            let before = self.covered;
            let Err(problem) = self.one_watch().await else { continue };
            warn!("{}: {}", problem.reason.as_str(), problem.message);
            self.board.change(|said| said.problem.clone_from(&problem.message));
            if !problem.retry {
                return Err(problem);
            }
            failures = if self.covered > before { 0 } else { failures + 1 };
            sleep(PAUSES[failures.min(PAUSES.len() - 1)]).await;
        }
    }

    /// Follows one member as long as it goes well. What waited when it ended is watched again.
    async fn one_watch(&mut self) -> Result<(), Failure> {
        self.waiting.clear();
        (self.size, self.since) = (0, None);
        let member = best(&self.task.endpoints, &self.folders.client_tls).await?;
        self.check_cluster(&member)?;
        let wrong = |error: crate::client::Error| of_etcd(&error, &member.endpoint);
        let mut responses = Box::pin(member.client.watch_all(self.covered + 1).await.map_err(wrong)?);
        let mut quiet = Instant::now() + QUIET;
        loop {
            let flush = self.since.map_or(quiet, |since| since + LONGEST);
            tokio::select! {
                biased;
                () = sleep_until(flush), if self.since.is_some() => self.flush(&member).await?,
                () = sleep_until(quiet) => {
                    self.still_quiet(&member).await?;
                    quiet = Instant::now() + QUIET;
                }
                response = responses.next() => {
                    let ended = || failure(FailureReason::EtcdUnreachable, format!("etcd at {}: the watch ended", member.endpoint), true);
                    let response = response.ok_or_else(ended)?.map_err(wrong)?;
                    if !self.take(response, &member)? {
                        return Ok(());
                    }
                    if self.size >= LARGEST {
                        self.flush(&member).await?;
                    }
                }
            }
        }
    }

    /// A path belongs to one history of revisions. A restored cluster is another one, further on.
    fn check_cluster(&mut self, member: &Member) -> Result<(), Failure> {
        let (cluster, revision) = (member.cluster(), member.revision());
        if self.cluster != 0 && self.cluster != cluster && revision < self.covered {
            let message = format!(
                "{} holds changes of another cluster up to revision {}, and this one is at {revision}: use another path",
                self.opening.store.location(&names::changes(self.opening.store.key())),
                self.covered
            );
            return Err(failure(FailureReason::OtherCluster, message, false));
        }
        if self.cluster != cluster {
            info!("following cluster {cluster:x}");
        }
        self.cluster = cluster;
        Ok(())
    }

    /// Takes what the watch brings; false when it must begin anew.
    fn take(&mut self, response: WatchResponse, member: &Member) -> Result<bool, Failure> {
        if response.canceled {
            if response.compact_revision > self.covered {
                warn!(
                    "revisions {} to {} were compacted before they were streamed",
                    self.covered + 1,
                    response.compact_revision
                );
                // What was compacted at its own point is not whole any more; what follows is.
                self.covered = response.compact_revision;
                self.needs_snapshot = Some(response.compact_revision);
                return Ok(false);
            }
            let message = format!(
                "etcd at {} ended the watch: {}",
                member.endpoint, response.cancel_reason
            );
            return Err(failure(FailureReason::EtcdFailed, message, true));
        }
        let now = Timestamp::now().max(self.last_time);
        for event in response.events {
            self.add(event, now);
        }
        Ok(true)
    }

    fn add(&mut self, event: Event, now: Timestamp) {
        let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        if revision <= self.covered {
            return;
        }
        self.last_time = now;
        self.size += event.encoded_len();
        self.since.get_or_insert_with(Instant::now);
        match self.waiting.last_mut() {
            Some(last) if last.revision == revision => last.events.push(event),
            _ => self.waiting.push(Change {
                revision,
                millis: now.as_millisecond(),
                events: vec![event],
            }),
        }
    }

    /// Certifies the time, and writes what waits: it was acknowledged, whether the member can certify it or not.
    async fn flush(&mut self, member: &Member) -> Result<(), Failure> {
        let certified = self.certify(member).await;
        self.write_segment().await?;
        certified
    }

    /// A linearizable read between two readings of the clock. A clock that was put back certifies nothing until it has caught up.
    async fn certify(&mut self, member: &Member) -> Result<(), Failure> {
        let before = Timestamp::now();
        let revision = member.client.with_request_timeout(QUIET).linearizable_revision().await;
        let revision = revision.map_err(|error| of_etcd(&error, &member.endpoint))?;
        let after = Timestamp::now();
        if self.last_time <= before && before <= after {
            let read = Certified {
                revision,
                seen: after.as_millisecond(),
                complete: before.as_millisecond(),
            };
            certified::add(&mut self.certified, read);
        }
        Ok(())
    }

    /// Writes what waits as one segment.
    async fn write_segment(&mut self) -> Result<(), Failure> {
        let Some(last) = self.waiting.last() else { return Ok(()) };
        let time = Timestamp::from_millisecond(last.millis).unwrap_or(self.last_time);
        let segment = Segment {
            first: self.covered + 1,
            last: last.revision,
            time,
        };
        let head = Head {
            cluster: self.cluster,
            first: segment.first,
            last: segment.last,
            certified: self
                .certified
                .iter()
                .filter(|pair| pair.revision <= segment.last)
                .copied()
                .collect(),
            certifies: true,
        };
        let content = Bytes::from(write(&head, &self.waiting));
        self.put(&segment.key(self.opening.store.key()), content).await?;
        self.waiting.clear();
        (self.size, self.since) = (0, None);
        self.covered = segment.last;
        self.tell();
        // The last pair may last longer: it goes into the next segment as well.
        let last = self.certified.iter().rposition(|pair| pair.revision <= self.covered);
        self.certified.drain(..last.unwrap_or(0));
        Ok(())
    }

    async fn put(&self, key: &str, content: Bytes) -> Result<(), Failure> {
        let content = futures::stream::iter([Ok::<_, Failure>(content)]);
        let packed = pack(content, &self.opening.packing).map_err(|error| of_key(&error))?;
        let stop = tokio_util::sync::CancellationToken::new();
        let put = self.opening.store.put(key, packed, &stop).await;
        put.map(|_| ()).map_err(|error| of_put(error, |failure| failure))
    }

    /// Nothing waits: when the cluster has no more than we have, this moment can be restored, too.
    async fn still_quiet(&mut self, member: &Member) -> Result<(), Failure> {
        self.look_for_snapshot().await?;
        if !self.waiting.is_empty() {
            return Ok(());
        }
        self.certify(member).await?;
        let Some(reached) = self
            .certified
            .last()
            .copied()
            .filter(|pair| pair.revision <= self.covered)
        else {
            return Ok(());
        };
        let content = serde_json::to_vec(&Reached::of(reached)).unwrap_or_default();
        let key = names::reached(self.opening.store.key());
        self.opening
            .store
            .put_small(&key, content.into())
            .await
            .map_err(|error| of_store(&error))?;
        self.tell();
        Ok(())
    }
}
