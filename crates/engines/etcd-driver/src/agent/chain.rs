//! The segments that lead from a snapshot to a point, and how far that is.

use futures::TryStreamExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stateward_backup::names::{self, Segment};
use stateward_backup::{Store, UnpackError};
use stateward_etcd::api::agent::{Failure, FailureReason};
use stateward_etcd::api::etcd_restore::RestoreTo;

use crate::agent::certified::{Answer, Certified, revision_at};
use crate::agent::failure::{corrupt, failure, of_store, of_unpack};
use crate::agent::place::Opening;
use crate::agent::segment::{self, Change, Head};

/// The content of the file `reached`: no change after this revision up to this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reached {
    pub(crate) revision: i64,
    /// As [`Certified::complete`].
    pub(crate) millis: i64,
    /// As [`Certified::seen`]. Older releases asked a member that may have been cut off, and did not write it.
    #[serde(default)]
    pub(crate) seen: Option<i64>,
}

impl Reached {
    pub(crate) fn of(pair: Certified) -> Self {
        Self {
            revision: pair.revision,
            millis: pair.complete,
            seen: Some(pair.seen),
        }
    }

    pub(crate) fn certified(&self) -> Option<Certified> {
        Some(Certified {
            revision: self.revision,
            seen: self.seen?,
            complete: self.millis,
        })
    }
}

/// All segments of the store's path, in order.
pub(crate) async fn segments(store: &Store) -> Result<Vec<Segment>, Failure> {
    let path = store.key();
    let found = store
        .list(&names::changes(path))
        .try_filter_map(|entry| std::future::ready(Ok(names::read_segment(path, &entry.key))));
    let mut found: Vec<Segment> = found.try_collect().await.map_err(|error| of_store(&error))?;
    found.sort();
    Ok(found)
}

/// The segments that follow a revision without a gap, as far as they go. Where several cover the same stretch (two
/// followers for a moment, or one that was killed after it had written), the one that leads furthest is taken.
pub(crate) fn follow(segments: &[Segment], after: i64) -> Vec<Segment> {
    let mut chain = Vec::new();
    let mut reached = after;
    let mut rest = segments.iter().peekable();
    loop {
        let mut furthest: Option<&Segment> = None;
        while let Some(next) = rest.next_if(|next| next.first <= reached.saturating_add(1)) {
            if next.last > furthest.map_or(reached, |found| found.last) {
                furthest = Some(next);
            }
        }
        match furthest {
            Some(found) => {
                reached = found.last;
                chain.push(*found);
            }
            None => return chain,
        }
    }
}

/// The first revision of the stretch without gaps that ends with the last segment.
pub(crate) fn start_of_last_run(segments: &[Segment]) -> Option<i64> {
    let mut runs = segments.iter();
    let first = runs.next()?;
    let (start, _) = runs.fold((first.first, first.last), |(start, reached), next| {
        if next.first <= reached.saturating_add(1) {
            (start, reached.max(next.last))
        } else {
            (next.first, next.last)
        }
    });
    Some(start)
}

/// Reads one segment.
pub(crate) async fn read(opening: &Opening, which: &Segment) -> Result<(Head, Vec<Change>), Failure> {
    let key = which.key(opening.store.key());
    let location = opening.store.location(&key);
    let content = opening.content(&key).await?;
    let content = content.try_fold(Vec::new(), |mut all, piece| async move {
        all.extend_from_slice(&piece);
        Ok::<_, UnpackError<stateward_backup::Error>>(all)
    });
    let content = content.await.map_err(|error| of_unpack(&error, &location))?;
    let (head, changes) = segment::read(&content).map_err(|what| corrupt(&location, what))?;
    if (head.first, head.last) != (which.first, which.last) {
        return Err(corrupt(&location, "it covers other revisions than its name says"));
    }
    Ok((head, changes))
}

pub(crate) async fn reached(opening: &Opening) -> Option<Reached> {
    let content = opening.content(&names::reached(opening.store.key())).await.ok()?;
    let content: Vec<_> = content.try_collect().await.ok()?;
    serde_json::from_slice(&content.concat()).ok()
}

/// Where a point is: the revision, and the segments that lead there from a snapshot.
pub(crate) struct Way {
    pub(crate) revision: i64,
    pub(crate) segments: Vec<Segment>,
}

/// The way from a snapshot's revision to a point; none when the snapshot itself lies behind it.
pub(crate) async fn way(
    opening: &Opening,
    all: &[Segment],
    snapshot: i64,
    to: &RestoreTo,
) -> Result<Option<Way>, Failure> {
    let mut segments = follow(all, snapshot);
    let known = segments.last().map_or(snapshot, |last| last.last);
    let until = match (to.revision, &to.time) {
        (Some(revision), _) => {
            if revision < snapshot {
                return Ok(None);
            }
            if revision > known {
                let message = format!(
                    "the changes in the store lead from the snapshot of revision {snapshot} only to revision {known}: choose a point up to there"
                );
                return Err(failure(FailureReason::PointMissing, message, false));
            }
            revision
        }
        (None, Some(time)) => match at_time(opening, all, &segments, snapshot, time.0).await? {
            Some(revision) => revision,
            None => return Ok(None),
        },
        (None, None) => known,
    };
    segments.retain(|segment| segment.first <= until);
    Ok(Some(Way {
        revision: until,
        segments,
    }))
}

/// The last revision that is certain to have been there at a time; none when the snapshot lies behind it. Times are told and
/// named in whole seconds: such a one includes all of its second.
async fn at_time(
    opening: &Opening,
    all: &[Segment],
    chain: &[Segment],
    snapshot: i64,
    time: Timestamp,
) -> Result<Option<i64>, Failure> {
    let asked = time.as_millisecond();
    let end = match time.subsec_nanosecond() {
        0 => asked + 999,
        _ => asked,
    };
    // A snapshot is named after the moment it was begun, and may hold a little more than was there at that moment.
    if let Some(holding) = all
        .iter()
        .find(|segment| segment.first <= snapshot && snapshot <= segment.last)
    {
        let (_, changes) = read(opening, holding).await?;
        let last = changes.iter().rfind(|change| change.revision <= snapshot);
        if last.is_some_and(|change| change.millis > end) {
            return Ok(None);
        }
    }
    let behind = chain.partition_point(|segment| segment.time.as_millisecond() <= end);
    let before = behind.checked_sub(1).and_then(|last| chain.get(last));
    let whole = before.map_or(snapshot, |segment| segment.last);
    let reached = reached(opening)
        .await
        .filter(|reached| reached.revision <= chain.last().map_or(snapshot, |last| last.last));
    let around = around(opening, chain, behind, end).await?;
    let arrived = around.arrived.unwrap_or(whole);
    let mut certified = around.certified;
    certified.extend(reached.and_then(|reached| reached.certified()));
    if around.is_old || certified.is_empty() {
        let known = before.map(|segment| segment.time.as_millisecond());
        let reached = reached
            .filter(|reached| reached.revision <= whole)
            .map(|reached| reached.millis);
        let known = known.max(reached).filter(|_| chain.get(behind).is_none());
        return match known {
            Some(known) if known < asked => Err(leads_only_to(known)),
            None if chain.get(behind).is_none() => Err(leads_only_to(i64::MIN)),
            _ => Ok(Some(arrived)),
        };
    }
    match revision_at(&certified, arrived, (asked, end)) {
        Answer::Revision(revision) => Ok(Some(revision)),
        Answer::OnlyTo(known) => Err(leads_only_to(known)),
        Answer::Between(before, behind) => {
            let words =
                |millis| Timestamp::from_millisecond(millis).map_or("the snapshot".to_owned(), |time| time.to_string());
            let message = format!(
                "the member that was streamed from was cut off at that time, and what happened between {} and {} cannot be told apart: choose one of them, or a revision",
                words(before),
                words(behind)
            );
            Err(failure(FailureReason::PointMissing, message, false))
        }
    }
}

fn leads_only_to(known: i64) -> Failure {
    let known = Timestamp::from_millisecond(known).ok().filter(|_| known > 0);
    let message = match known {
        Some(known) => format!("the changes in the store lead only to {known}: choose a time up to there"),
        None => "the store holds no changes that follow the snapshot: only the snapshot itself can be restored".into(),
    };
    failure(FailureReason::PointMissing, message, false)
}

/// What the segments around a moment tell of it.
#[derive(Default)]
struct Around {
    /// The last revision of the segment in which the moment lies that had arrived by then.
    arrived: Option<i64>,
    certified: Vec<Certified>,
    /// One of them was written by a release that did not certify times.
    is_old: bool,
}

/// Reads the segment before a moment, the one in which it lies, and more until one tells of a time after it: what is certified
/// may be in a later segment than what arrived meanwhile.
async fn around(opening: &Opening, chain: &[Segment], behind: usize, end: i64) -> Result<Around, Failure> {
    let mut found = Around::default();
    for (place, segment) in chain.iter().enumerate().skip(behind.saturating_sub(1)) {
        let (head, changes) = read(opening, segment).await?;
        if place == behind {
            let fits = changes.iter().rfind(|change| change.millis <= end);
            found.arrived = fits.map(|change| change.revision);
        }
        found.is_old |= !head.certifies && place <= behind;
        found.certified.extend(head.certified);
        let is_enough = found.certified.iter().any(|pair| pair.seen > end);
        if place >= behind && (is_enough || !head.certifies) {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use stateward_core::store::{FileStore, StoreBlocks};
    use stateward_etcd::api::agent::Place;

    use super::*;
    use crate::agent::Folders;

    fn segment(first: i64, last: i64) -> Segment {
        Segment {
            first,
            last,
            time: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_chain_has_no_gaps_and_takes_the_longest() {
        let all = [
            segment(1, 4),
            segment(5, 6),
            segment(5, 9),
            segment(8, 12),
            segment(14, 20),
        ];
        let ends = |after| follow(&all, after).iter().map(|found| found.last).collect::<Vec<_>>();
        assert_eq!(ends(0), [4, 9, 12]);
        assert_eq!(ends(5), [9, 12]);
        assert_eq!(ends(12), Vec::<i64>::new());
        assert_eq!(ends(13), [20]);
        assert_eq!(ends(100), Vec::<i64>::new());
        assert_eq!(start_of_last_run(&all), Some(14));
        assert_eq!(start_of_last_run(&all[..4]), Some(1));
        assert_eq!(start_of_last_run(&[]), None);
    }

    /// A segment: its changes, the certified times, and whether its writer certifies times at all.
    type Given<'a> = (&'a [(i64, i64)], &'a [Certified], bool);

    /// Segments of single changes as they are in a folder: revisions with the milliseconds at which they arrived.
    async fn stored(folders: &Folders, segments: &[Given<'_>]) -> Opening {
        let place = Place {
            store: StoreBlocks {
                file: Some(FileStore {
                    claim_name: "any".into(),
                    path: "k".into(),
                }),
                ..StoreBlocks::default()
            },
            ..Place::default()
        };
        let opening = Opening::new(&place, folders).expect("a place");
        for (changes, certified, certifies) in segments {
            let (first, last) = (changes[0].0, changes[changes.len() - 1]);
            let head = Head {
                cluster: 1,
                first,
                last: last.0,
                certified: certified.to_vec(),
                certifies: *certifies,
            };
            let changes: Vec<Change> = changes
                .iter()
                .map(|(revision, millis)| Change {
                    revision: *revision,
                    millis: START + *millis,
                    events: Vec::new(),
                })
                .collect();
            let name = Segment {
                first,
                last: last.0,
                time: Timestamp::from_millisecond(START + last.1).expect("a time"),
            };
            let content = segment::write(&head, &changes).into();
            opening.store.put_small(&name.key("k"), content).await.expect("written");
        }
        opening
    }

    const START: i64 = 1_700_000_000_000;

    async fn at(opening: &Opening, millis: i64) -> Result<i64, String> {
        let time = Some(Time(Timestamp::from_millisecond(START + millis).expect("a time")));
        let to = RestoreTo { revision: None, time };
        let all = segments(&opening.store).await.expect("segments");
        let way = way(opening, &all, 4, &to).await.map_err(|failure| failure.message)?;
        Ok(way.expect("a way").revision)
    }

    #[tokio::test]
    async fn what_older_releases_streamed_is_restored_as_they_did() {
        let claim = tempfile::tempdir().expect("a folder");
        let folders = Folders {
            claim: claim.path().to_owned(),
            ..Folders::default()
        };
        let opening = stored(
            &folders,
            &[
                (&[(5, 100), (6, 900)], &[], false),
                (&[(7, 5_100), (8, 5_900)], &[], false),
            ],
        )
        .await;
        assert_eq!(at(&opening, 500).await, Ok(5));
        assert_eq!(at(&opening, 2_500).await, Ok(6));
        assert_eq!(at(&opening, 5_899).await, Ok(7));
        assert!(at(&opening, 9_500).await.expect_err("not yet").contains("lead only to"));
        let reached = bytes::Bytes::from(format!("{{\"revision\":8,\"millis\":{}}}", START + 10_000));
        opening
            .store
            .put_small(&names::reached("k"), reached)
            .await
            .expect("written");
        assert_eq!(at(&opening, 9_500).await, Ok(8));
    }

    #[tokio::test]
    async fn changes_that_arrived_late_are_not_left_out_of_a_time() {
        let claim = tempfile::tempdir().expect("a folder");
        let folders = Folders {
            claim: claim.path().to_owned(),
            ..Folders::default()
        };
        let pair = |revision, seen: i64, complete: i64| Certified {
            revision,
            seen: START + seen,
            complete: START + complete,
        };
        // given 7 was there at 2.5 s by a quorum's word and arrived at 4 s, and 9 arrived after five minutes without a quorum
        let opening = stored(
            &folders,
            &[
                (
                    &[(5, 1_100), (6, 1_200)],
                    &[pair(4, 100, 1_000), pair(6, 2_002, 2_000)],
                    true,
                ),
                (
                    &[(7, 4_100), (8, 4_200)],
                    &[pair(6, 2_002, 2_000), pair(7, 2_501, 2_500), pair(8, 5_001, 9_000)],
                    true,
                ),
                (
                    &[(9, 310_100)],
                    &[pair(8, 5_001, 9_000), pair(9, 310_502, 310_501)],
                    true,
                ),
            ],
        )
        .await;
        assert_eq!(at(&opening, 1_150).await, Ok(5));
        assert_eq!(at(&opening, 2_300).await, Ok(6));
        assert_eq!(at(&opening, 2_600).await, Ok(7));
        assert_eq!(at(&opening, 9_500).await, Ok(8));
        assert!(at(&opening, 200_500).await.expect_err("unknown").contains("cut off"));
        assert_eq!(at(&opening, 310_501).await, Ok(9));
        assert!(
            at(&opening, 310_600)
                .await
                .expect_err("not yet")
                .contains("lead only to")
        );
    }
}
