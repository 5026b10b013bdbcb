//! Cron expressions of five fields, in UTC, of a given time. Pure.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Text that is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a cron expression ({1}): write five fields (minute hour day month weekday), for example \"0 3 * * *\""
)]
pub struct NotCron(String, String);

/// Times by a cron expression.
#[derive(Clone, Debug)]
pub struct Schedule(Cron);

impl Schedule {
    /// Reads an expression.
    pub fn parse(text: &str) -> Result<Self, NotCron> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        match parser.parse(text.trim()) {
            Ok(cron) => Ok(Self(cron)),
            Err(error) => Err(NotCron(text.to_owned(), error.to_string())),
        }
    }

    /// The first time after the given one. `None`: there is none (30 February).
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.to_zoned(TimeZone::UTC);
        self.0
            .find_next_occurrence(&after, false)
            .ok()
            .map(|time| time.timestamp())
    }

    /// The last time up to and with the given one.
    pub fn last(&self, until: Timestamp) -> Option<Timestamp> {
        let until = until.to_zoned(TimeZone::UTC);
        self.0
            .find_previous_occurrence(&until, true)
            .ok()
            .map(|time| time.timestamp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn times_around_a_given_one() {
        let nightly = Schedule::parse("0 2 * * *").unwrap();
        assert_eq!(
            nightly.next(time("2026-03-01T02:00:00Z")),
            Some(time("2026-03-02T02:00:00Z"))
        );
        assert_eq!(
            nightly.last(time("2026-03-01T02:00:00Z")),
            Some(time("2026-03-01T02:00:00Z"))
        );
        assert_eq!(
            nightly.last(time("2026-03-01T01:59:59Z")),
            Some(time("2026-02-28T02:00:00Z"))
        );
        assert_eq!(
            nightly.last(time("2026-03-01T02:00:00.5Z")),
            Some(time("2026-03-01T02:00:00Z"))
        );
        let hourly = Schedule::parse("@hourly").unwrap();
        assert_eq!(
            hourly.next(time("2026-03-01T02:30:00Z")),
            Some(time("2026-03-01T03:00:00Z"))
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for text in ["", "whenever", "0 0 0 0 0", "* * * *", "0 2 * * * *", "61 * * * *"] {
            assert!(Schedule::parse(text).is_err(), "{text}");
        }
        assert_eq!(
            Schedule::parse("0 0 30 2 *")
                .unwrap()
                .next(time("2026-03-01T02:30:00Z")),
            None
        );
    }
}
