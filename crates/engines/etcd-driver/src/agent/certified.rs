//! What is known of the time of a revision, by the clock of the pod that streams.
//!
//! A change arrives when it arrives: from a member that was cut off, minutes after it was acknowledged. So the clock is read,
//! then a linearizable read is made, then the clock is read again. The read returns the newest revision that was acknowledged
//! before it began, and nothing that happens after it has ended. That pair of times is what a restore to a time rests on.

use prost::Message;

/// A revision and two times, in milliseconds of Unix time.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Certified {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
    /// At this time the revision was there: the clock after the first read that returned it.
    #[prost(int64, tag = "2")]
    pub(crate) seen: i64,
    /// Everything that was acknowledged before this time is in the revision: the clock before the last read that returned it.
    #[prost(int64, tag = "3")]
    pub(crate) complete: i64,
}

/// Adds what one more read brought. Nothing is written between two reads of one revision.
pub(crate) fn add(all: &mut Vec<Certified>, read: Certified) {
    match all.last_mut() {
        Some(last) if last.revision == read.revision => last.complete = last.complete.max(read.complete),
        Some(last) if last.revision > read.revision => {} // another cluster, which is told elsewhere
        _ => all.push(read),
    }
}

/// How much may be missing before a time that is restored to: the time between two reads, and a store that was slow.
const TOLERANCE: i64 = 60_000;

/// What a restore to a time may count on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This revision: nothing in it is from after the time, and everything acknowledged well before it is in it.
    Revision(i64),
    /// Everything is certified only up to this time.
    OnlyTo(i64),
    /// Changes between these two times cannot be told apart.
    Between(i64, i64),
}

/// The revision of a time. `arrived` is the last one that had arrived by then, so that it was there by then. `asked` is
/// the time, `end` the end of what its precision includes.
pub(crate) fn revision_at(certified: &[Certified], arrived: i64, (asked, end): (i64, i64)) -> Answer {
    let seen = certified.iter().filter(|pair| pair.seen <= end);
    let revision = seen.map(|pair| pair.revision).fold(arrived, i64::max);
    let complete = |fits: &dyn Fn(&&Certified) -> bool| certified.iter().filter(fits).map(|pair| pair.complete).max();
    let behind = certified.iter().filter(|pair| pair.complete >= asked);
    let (before, known) = (complete(&|pair| pair.revision <= revision), complete(&|_| true));
    match (before, behind.map(|pair| pair.complete).min()) {
        (_, None) => Answer::OnlyTo(known.unwrap_or(i64::MIN)),
        (Some(before), Some(_)) if before >= asked.saturating_sub(TOLERANCE) => Answer::Revision(revision),
        (before, Some(behind)) => Answer::Between(before.unwrap_or(i64::MIN), behind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(revision: i64, seen: i64, complete: i64) -> Certified {
        Certified {
            revision,
            seen,
            complete,
        }
    }

    #[test]
    fn a_quiet_time_is_one_pair() {
        let mut all = Vec::new();
        for read in [
            pair(5, 11, 10),
            pair(5, 21, 20),
            pair(7, 31, 30),
            pair(7, 41, 40),
            pair(6, 51, 50),
        ] {
            add(&mut all, read);
        }
        assert_eq!(all, [pair(5, 11, 20), pair(7, 31, 40)]);
    }

    #[test]
    fn a_time_has_the_last_revision_that_was_there_by_then() {
        let certified = [pair(5, 1_001, 9_000), pair(7, 10_001, 10_000), pair(9, 11_001, 60_000)];
        let at = |time| revision_at(&certified, 5, (time, time));
        assert_eq!(at(8_000), Answer::Revision(5));
        assert_eq!(at(10_000), Answer::Revision(5), "7 may have come a moment later");
        assert_eq!(at(10_001), Answer::Revision(7));
        assert_eq!(at(60_000), Answer::Revision(9));
        assert_eq!(at(60_001), Answer::OnlyTo(60_000));
        // what had arrived by then was there by then
        assert_eq!(revision_at(&certified, 6, (10_000, 10_000)), Answer::Revision(6));
    }

    #[test]
    fn a_time_at_which_the_member_was_cut_off_has_no_revision() {
        // given five minutes in which nothing is certified, and changes that arrived late
        let certified = [pair(5, 1_001, 9_000), pair(50, 309_001, 309_000)];
        // then the time shortly after the last read is known well enough, the middle is not, and the end is
        assert_eq!(revision_at(&certified, 5, (20_000, 20_000)), Answer::Revision(5));
        assert_eq!(
            revision_at(&certified, 5, (200_000, 200_000)),
            Answer::Between(9_000, 309_000)
        );
        assert_eq!(revision_at(&certified, 5, (309_000, 309_999)), Answer::Revision(50));
        assert_eq!(revision_at(&[], 5, (1, 1)), Answer::OnlyTo(i64::MIN));
    }
}
