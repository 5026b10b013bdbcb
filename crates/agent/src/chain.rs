//! The segments that lead from a snapshot to a point, and how far that is.

use futures::TryStreamExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stateward_api::agent::Failure;
use stateward_api::etcd_restore::RestoreTo;
use stateward_store::names::{self, Segment};
use stateward_store::{Store, UnpackError};

use crate::failure::{corrupt, failure, of_store, of_unpack};
use crate::place::Opening;
use crate::segment::{self, Change, Head};

/// The content of the file `reached`: no change after this revision up to this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reached {
    pub(crate) revision: i64,
    pub(crate) millis: i64,
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
        Ok::<_, UnpackError<stateward_store::Error>>(all)
    });
    let content = content.await.map_err(|error| of_unpack(&error, &location))?;
    let (head, changes) = segment::read(&content).map_err(|what| corrupt(&location, what))?;
    if (head.first, head.last) != (which.first, which.last) {
        return Err(corrupt(&location, "it covers other revisions than its name says"));
    }
    Ok((head, changes))
}

async fn reached(opening: &Opening) -> Option<Reached> {
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
                return Err(failure("PointMissing", message, false));
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

/// The last revision seen at a time or before; none when the snapshot lies behind it. Times are told and named in whole
/// seconds: such a one includes all of its second.
async fn at_time(
    opening: &Opening,
    all: &[Segment],
    chain: &[Segment],
    snapshot: i64,
    time: Timestamp,
) -> Result<Option<i64>, Failure> {
    let end = match time.subsec_nanosecond() {
        0 => time.as_millisecond() + 999,
        _ => time.as_millisecond(),
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
    if let Some(split) = chain.get(behind) {
        let (_, changes) = read(opening, split).await?;
        let fits = changes.iter().rfind(|change| change.millis <= end);
        return Ok(Some(fits.map_or(whole, |change| change.revision)));
    }
    let mut known = before.map(|segment| segment.time.as_millisecond());
    if let Some(reached) = reached(opening).await
        && reached.revision <= whole
    {
        known = known.max(Some(reached.millis));
    }
    if known.is_some_and(|known| known >= time.as_millisecond()) {
        return Ok(Some(whole));
    }
    let known = known.and_then(|known| Timestamp::from_millisecond(known).ok());
    let message = match known {
        Some(known) => format!("the changes in the store lead only to {known}: choose a time up to there"),
        None => "the store holds no changes that follow the snapshot: only the snapshot itself can be restored".into(),
    };
    Err(failure("PointMissing", message, false))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
