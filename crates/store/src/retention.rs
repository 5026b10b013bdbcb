//! Which periodic backups may go. Pure.

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

/// The snapshots to delete, oldest first. `good` was just proven and never goes, whatever is asked: it is the last good
/// one. One that lies in the future, by a clock that was wrong, counts as new.
pub fn to_delete<'a>(found: &'a [Snapshot], good: &str, keep: Keep, now: Timestamp) -> Vec<&'a Snapshot> {
    let mut newest_first: Vec<&Snapshot> = found.iter().collect();
    newest_first.sort_by(|a, b| b.cmp(a));
    // The good one takes the first place, so that keeping one keeps it.
    newest_first.sort_by_key(|snapshot| snapshot.key != good);
    let mut goes: Vec<&Snapshot> = newest_first
        .into_iter()
        .enumerate()
        .filter(|(place, snapshot)| {
            let beyond = keep.count.is_some_and(|count| *place as i64 >= count);
            let limit = keep
                .seconds
                .and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok());
            let too_old = keep.seconds.is_some() && limit.is_some_and(|limit| snapshot.time < limit);
            snapshot.key != good && (beyond || too_old)
        })
        .map(|(_, snapshot)| snapshot)
        .collect();
    goes.sort();
    goes
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
            let goes = to_delete(&found, &good.key, keep, now);
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
