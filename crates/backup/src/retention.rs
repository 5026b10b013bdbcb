//! Which periodic backups may go. Pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::names::{Segment, Snapshot};

/// How many to keep, and for how long. Nothing set: all, for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The newest so many.
    pub count: Option<i64>,
    /// Those not older than so many seconds.
    pub seconds: Option<i64>,
}

/// What is remembered of how files were proven, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Proven as it was asked for.
    pub proven: BTreeSet<String>,
    /// Not proven: the proof failed or did not take place.
    pub unproven: BTreeSet<String>,
}

impl Known {
    /// The memory is bounded. A file that it does not tell of was proven when it is older than every proven one that it tells
    /// of; a newer one was left by an attempt that nobody heard of.
    fn is_proven(&self, snapshot: &Snapshot, oldest: Option<&Snapshot>) -> bool {
        let forgotten = || oldest.is_none_or(|oldest| snapshot < oldest);
        self.proven.contains(&snapshot.key) || (!self.unproven.contains(&snapshot.key) && forgotten())
    }
}

/// The snapshot that was just taken. It never goes, whatever is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken<'a> {
    /// It is proven as asked, so that older proven ones may go.
    Proven(&'a str),
    /// Its proof is still to come: no proven one goes before.
    Unproven(&'a str),
}

/// The snapshots to delete, oldest first. Proven and unproven ones are counted apart, so that no unproven one pushes out a
/// proven one. One that lies in the future, by a clock that was wrong, counts as new.
pub fn to_delete<'a>(
    found: &'a [Snapshot],
    known: &Known,
    taken: Taken<'_>,
    keep: Keep,
    now: Timestamp,
) -> Vec<&'a Snapshot> {
    let (current, is_proven) = match taken {
        Taken::Proven(key) => (key, true),
        Taken::Unproven(key) => (key, false),
    };
    let listed = |snapshot: &&Snapshot| known.proven.contains(&snapshot.key) || (is_proven && snapshot.key == current);
    let oldest = found.iter().filter(listed).min();
    let (proven, unproven): (Vec<&Snapshot>, Vec<&Snapshot>) = found.iter().partition(|snapshot| {
        if snapshot.key == current {
            is_proven
        } else {
            known.is_proven(snapshot, oldest)
        }
    });
    let mut goes = beyond(unproven, current, keep, now);
    if is_proven {
        goes.extend(beyond(proven, current, keep, now));
    }
    goes.sort();
    goes
}

/// Those of one kind that are too many or too old.
fn beyond<'a>(mut newest_first: Vec<&'a Snapshot>, current: &str, keep: Keep, now: Timestamp) -> Vec<&'a Snapshot> {
    newest_first.sort_by(|a, b| b.cmp(a));
    // The current one takes the first place, so that keeping one keeps it.
    newest_first.sort_by_key(|snapshot| snapshot.key != current);
    let limit = keep
        .seconds
        .and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok());
    let goes = newest_first.into_iter().enumerate().filter(|(place, snapshot)| {
        let beyond = keep.count.is_some_and(|count| *place as i64 >= count);
        let too_old = limit.is_some_and(|limit| snapshot.time < limit);
        snapshot.key != current && (beyond || too_old)
    });
    goes.map(|(_, snapshot)| snapshot).collect()
}

/// The segments that no kept snapshot needs any more: those that end before the oldest of them.
pub fn segments_to_delete<'a>(segments: &'a [Segment], kept: &[Snapshot]) -> Vec<&'a Segment> {
    let Some(oldest) = kept.iter().map(|snapshot| snapshot.revision).min() else {
        return Vec::new();
    };
    segments.iter().filter(|segment| segment.last <= oldest).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64, revision: i64) -> Snapshot {
        let time = Timestamp::from_second(1_700_000_000 + second).expect("a time");
        Snapshot {
            time,
            revision,
            key: crate::names::snapshot("p", revision, time),
        }
    }

    proptest! {
        #[test]
        fn never_the_last_good_one_and_never_a_newer_before_an_older(
            seconds in proptest::collection::btree_set(0_i64..10_000, 1..30),
            count in proptest::option::of(0_i64..40),
            age in proptest::option::of(0_i64..20_000),
            later in 0_i64..20_000,
            pick in any::<proptest::sample::Index>(),
        ) {
            let found: Vec<Snapshot> = seconds.iter().enumerate().map(|(n, s)| at(*s, n as i64)).collect();
            let good = &found[pick.index(found.len())];
            let now = Timestamp::from_second(1_700_000_000 + later).expect("a time");
            let keep = Keep { count, seconds: age };
            let known = Known {
                proven: found.iter().map(|snapshot| snapshot.key.clone()).collect(),
                ..Known::default()
            };
            let goes = to_delete(&found, &known, Taken::Proven(&good.key), keep, now);
            prop_assert!(goes.iter().all(|gone| gone.key != good.key));
            prop_assert!(goes.is_sorted());
            let left: Vec<&Snapshot> = found.iter().filter(|kept| !goes.contains(kept)).collect();
            if let Some(count) = count {
                prop_assert!(left.len() as i64 <= count.max(1));
                prop_assert!(age.is_some() || left.len() as i64 == count.clamp(1, found.len() as i64));
            }
            if let Some(age) = age {
                let old = |snapshot: &Snapshot| now.duration_since(snapshot.time).as_secs() > age;
                prop_assert!(left.iter().all(|kept| kept.key == good.key || !old(kept)));
                prop_assert!(count.is_some() || goes.iter().all(|gone| old(gone)));
            }
            if count.is_none() && age.is_none() {
                prop_assert!(goes.is_empty());
            }
            for gone in &goes {
                prop_assert!(left.iter().all(|kept| kept.key == good.key || kept.time >= gone.time));
            }
        }
    }

    proptest! {
        #[test]
        fn unproven_ones_push_out_no_proven_one_and_are_bounded(
            kinds in proptest::collection::vec(0_u8..3, 1..30),
            count in 1_i64..10,
            last_is_proven in any::<bool>(),
        ) {
            // given files in a row, each remembered as proven, as unproven, or not at all; the last was just taken
            let found: Vec<Snapshot> = (0..).zip(&kinds).map(|(n, _)| at(n * 10, n)).collect();
            let of = |wanted: u8| found.iter().zip(&kinds).filter(move |(_, kind)| **kind == wanted).map(|(s, _)| s.key.clone());
            let known = Known { proven: of(0).collect(), unproven: of(1).collect() };
            let last = found.last().map(|last| last.key.as_str()).unwrap_or_default();
            let taken = if last_is_proven { Taken::Proven(last) } else { Taken::Unproven(last) };
            let keep = Keep { count: Some(count), seconds: None };
            let goes = to_delete(&found, &known, taken, keep, found[found.len() - 1].time);
            let left: Vec<&Snapshot> = found.iter().filter(|kept| !goes.contains(kept)).collect();
            // then of the proven ones as many stay as are to be kept
            let is_proven = |snapshot: &&&Snapshot| snapshot.key != last && known.proven.contains(&snapshot.key);
            let proven = found.iter().filter(|snapshot| is_proven(&snapshot)).count() as i64 + i64::from(last_is_proven);
            let kept = left.iter().filter(|snapshot| is_proven(snapshot)).count() as i64 + i64::from(last_is_proven);
            prop_assert!(kept >= proven.min(count), "{kept} of {proven} stay");
            prop_assert!(last_is_proven || kept == proven, "nothing proven goes before the proof");
            // and of the unproven ones no more than that
            let is_taken = |snapshot: &Snapshot| last_is_proven && snapshot.key == last;
            let unproven =
                |snapshot: &&&Snapshot| !is_taken(snapshot) && known.unproven.contains(&snapshot.key);
            prop_assert!(left.iter().filter(unproven).count() as i64 <= count.max(1));
        }
    }

    #[test]
    fn what_nobody_heard_of_counts_as_proven_only_when_it_is_older_than_what_is_remembered() {
        // given a file from before the memory, a proven one, one that a killed agent left, and the one just proven
        let found = [at(0, 1), at(10, 2), at(20, 3), at(30, 4)];
        let known = Known {
            proven: [found[1].key.clone()].into(),
            ..Known::default()
        };
        let keep = Keep {
            count: Some(2),
            seconds: None,
        };
        let goes = to_delete(&found, &known, Taken::Proven(&found[3].key), keep, found[3].time);
        // then the left one takes no place: the two proven ones stay
        assert_eq!(goes, [&found[0]]);
    }

    #[test]
    fn segments_go_with_the_last_snapshot_that_needs_them() {
        let segment = |first, last| Segment {
            first,
            last,
            time: Timestamp::UNIX_EPOCH,
        };
        let segments = [segment(1, 10), segment(11, 20), segment(21, 30)];
        let kept = [at(5, 20), at(9, 28)];
        let goes = segments_to_delete(&segments, &kept);
        assert_eq!(goes.iter().map(|gone| gone.last).collect::<Vec<_>>(), [10, 20]);
        assert!(segments_to_delete(&segments, &[]).is_empty());
    }
}
