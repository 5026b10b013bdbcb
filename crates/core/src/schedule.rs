//! When something periodic is due. Missed times are caught up once: only the latest of them counts.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::cron;

/// By what the times are given.
#[derive(Clone, Debug)]
pub enum Times {
    /// A cron expression.
    Cron(Box<cron::Schedule>),
    /// Every so often.
    Every(Duration),
    /// Once, at once.
    Once,
    /// No time ever comes.
    Never,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It is time, for this scheduled time.
    Now(Timestamp),
    /// Then.
    At(Timestamp),
    /// Never again: it was done once, or no such time comes.
    Never,
}

impl Times {
    /// The last time, if it lies further ahead than the next one to come: then it is of a clock that was wrong, and times are
    /// to be counted from now again. A little ahead is not wrong, as another operator's clock may be; no scheduled time is
    /// used twice for that.
    pub fn is_of_a_wrong_clock(&self, last: Timestamp, now: Timestamp) -> bool {
        let next = match self {
            Self::Cron(cron) => cron.next(now),
            Self::Every(interval) => Some(later(now, *interval)),
            Self::Once | Self::Never => None,
        };
        next.is_some_and(|next| last > next)
    }

    /// When it is due, for an object of this age that was last due at `last`. Failures are not looked at.
    pub fn due(&self, created: Timestamp, last: Option<Timestamp>, now: Timestamp) -> Due {
        match (self, last) {
            (Self::Cron(cron), last) => {
                let last = last.unwrap_or(created);
                match cron.last(now).filter(|time| *time > last) {
                    Some(missed) => Due::Now(missed),
                    None => cron.next(now.max(last)).map_or(Due::Never, Due::At),
                }
            }
            (Self::Every(_) | Self::Once, None) => Due::Now(created),
            (Self::Once, Some(_)) | (Self::Never, _) => Due::Never,
            (Self::Every(interval), Some(last)) => {
                let since = Duration::try_from(now.duration_since(last)).unwrap_or_default();
                match since.as_secs() / interval.as_secs().max(1) {
                    0 => Due::At(later(last, *interval)),
                    times => {
                        let times = u32::try_from(times).unwrap_or(u32::MAX);
                        Due::Now(later(last, interval.saturating_mul(times)))
                    }
                }
            }
        }
    }
}

/// A time by so much later, as far as there are times.
pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| time.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn missed_times_are_caught_up_once() {
        let hourly = Times::Every(Duration::from_secs(3600));
        assert_eq!(hourly.due(at(7), None, at(9)), Due::Now(at(7)));
        assert_eq!(hourly.due(at(7), Some(at(7)), at(9)), Due::At(at(3607)));
        assert_eq!(hourly.due(at(7), Some(at(7)), at(3 * 3600)), Due::Now(at(7 + 2 * 3600)));
        assert_eq!(Times::Once.due(at(7), Some(at(7)), at(9)), Due::Never);
        let daily = Times::Cron(Box::new(cron::Schedule::parse("0 0 * * *").unwrap()));
        assert_eq!(daily.due(at(7), None, at(9)), Due::At(at(86_400)));
        assert_eq!(daily.due(at(7), None, at(3 * 86_400 + 5)), Due::Now(at(3 * 86_400)));
    }

    #[test]
    fn a_time_far_ahead_is_of_a_wrong_clock() {
        let hourly = Times::Every(Duration::from_secs(3600));
        assert!(!hourly.is_of_a_wrong_clock(at(3000), at(0)));
        assert!(hourly.is_of_a_wrong_clock(at(4000), at(0)));
        assert!(!Times::Once.is_of_a_wrong_clock(at(4000), at(0)));
    }
}
