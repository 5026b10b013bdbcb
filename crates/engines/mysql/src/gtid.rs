//! Sets of GTIDs: what a server has executed, received or purged, and the arithmetic that decisions rest on.
//!
//! The text form is MySQL's: `uuid:1-5:7,uuid:tag:1-3`. Since MySQL 8.3 a GTID can have a tag, and the intervals after a tag
//! belong to it until the next tag: `uuid:1-5:tag:1-3`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where GTIDs come from: a server's UUID, and a tag where the transaction has one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// The server's UUID.
    pub uuid: u128,
    /// The tag, in lower case.
    pub tag: Option<Box<str>>,
}

/// A set of GTIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GtidSet {
    /// For each source its intervals: first and last number, sorted, neither overlapping nor adjacent.
    sources: BTreeMap<Source, Vec<(u64, u64)>>,
}

/// Why a text is no set of GTIDs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a set of GTIDs: {why}")]
pub struct NotAGtidSet {
    text: String,
    why: &'static str,
}

impl GtidSet {
    /// One source's numbers from `first` to `last`.
    pub fn range(uuid: u128, first: u64, last: u64) -> Self {
        let mut set = Self::default();
        set.add(Source { uuid, tag: None }, first, last);
        set
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// How many transactions it names.
    pub fn count(&self) -> u64 {
        let intervals = self.sources.values().flatten();
        intervals.map(|(first, last)| last - first + 1).sum()
    }

    /// Adds the numbers from `first` to `last` of a source.
    pub fn add(&mut self, source: Source, first: u64, last: u64) {
        if first == 0 || last < first {
            return;
        }
        let intervals = self.sources.entry(source).or_default();
        let at = intervals.partition_point(|(_, end)| end.saturating_add(1) < first);
        let (mut first, mut last, mut merged) = (first, last, at);
        while let Some((start, end)) = intervals.get(merged)
            && *start <= last.saturating_add(1)
        {
            first = first.min(*start);
            last = last.max(*end);
            merged += 1;
        }
        intervals.splice(at..merged, [(first, last)]);
    }

    /// Every GTID of both.
    pub fn union(&self, other: &Self) -> Self {
        let (mut all, rest) = if self.sources.len() >= other.sources.len() {
            (self.clone(), other)
        } else {
            (other.clone(), self)
        };
        all.extend(rest);
        all
    }

    /// Adds every GTID of another set.
    pub fn extend(&mut self, other: &Self) {
        for (source, intervals) in &other.sources {
            for (first, last) in intervals {
                self.add(source.clone(), *first, *last);
            }
        }
    }

    /// What is in this set and not in the other.
    pub fn subtract(&self, other: &Self) -> Self {
        let mut left = Self::default();
        for (source, intervals) in &self.sources {
            let Some(taken) = other.sources.get(source) else {
                left.sources.insert(source.clone(), intervals.clone());
                continue;
            };
            let rest = subtract(intervals, taken);
            if !rest.is_empty() {
                left.sources.insert(source.clone(), rest);
            }
        }
        left
    }

    /// What in this set is from the server with this UUID.
    pub fn of_source(&self, uuid: u128) -> Self {
        let mut own = self.clone();
        own.sources.retain(|source, _| source.uuid == uuid);
        own
    }

    /// What is in both.
    pub fn intersection(&self, other: &Self) -> Self {
        self.subtract(&self.subtract(other))
    }

    /// Every GTID of `other` is in this set.
    pub fn contains(&self, other: &Self) -> bool {
        other.sources.iter().all(|(source, intervals)| {
            let own = self.sources.get(source).map_or(&[][..], Vec::as_slice);
            intervals.iter().all(|(first, last)| covers(own, *first, *last))
        })
    }

    /// No GTID is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.intersection(other).is_empty()
    }

    /// The UUIDs of its sources.
    pub fn uuids(&self) -> impl Iterator<Item = u128> + '_ {
        self.sources.keys().map(|source| source.uuid)
    }

    /// Its intervals, by source.
    pub fn intervals(&self) -> impl Iterator<Item = (&Source, u64, u64)> {
        let sources = self.sources.iter();
        sources.flat_map(|(source, all)| all.iter().map(move |(first, last)| (source, *first, *last)))
    }

    /// For texts that users read: at most `limit` characters, with the number of what was left out.
    pub fn brief(&self, limit: usize) -> String {
        let text = self.to_string();
        if text.len() <= limit {
            return text;
        }
        let kept: String = text.chars().take(limit).collect();
        format!("{kept}… ({} transactions)", self.count())
    }
}

fn covers(intervals: &[(u64, u64)], first: u64, last: u64) -> bool {
    let at = intervals.partition_point(|(_, end)| *end < first);
    intervals
        .get(at)
        .is_some_and(|(start, end)| *start <= first && last <= *end)
}

fn subtract(from: &[(u64, u64)], taken: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    let mut taken = taken.iter().peekable();
    for (first, last) in from {
        let mut next = *first;
        while let Some((start, end)) = taken.peek() {
            if *end < next {
                taken.next();
                continue;
            }
            if *start > *last {
                break;
            }
            if next < *start {
                left.push((next, start - 1));
            }
            next = end.saturating_add(1);
            if *end > *last {
                break; // It may reach into the next interval.
            }
            taken.next();
        }
        if next <= *last {
            left.push((next, *last));
        }
    }
    left
}

/// A UUID as MySQL writes it.
pub fn uuid_text(uuid: u128) -> String {
    let hex = format!("{uuid:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    )
}

/// Reads a UUID.
pub fn parse_uuid(text: &str) -> Option<u128> {
    let hex: String = text.trim().chars().filter(|character| *character != '-').collect();
    let is_hex = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(&hex, 16).ok()).flatten()
}

impl fmt::Display for GtidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before: Option<u128> = None;
        for (source, intervals) in &self.sources {
            if before != Some(source.uuid) {
                let comma = if before.is_some() { "," } else { "" };
                write!(f, "{comma}{}", uuid_text(source.uuid))?;
                before = Some(source.uuid);
            }
            if let Some(tag) = &source.tag {
                write!(f, ":{tag}")?;
            }
            for (first, last) in intervals {
                if first == last {
                    write!(f, ":{first}")?;
                } else {
                    write!(f, ":{first}-{last}")?;
                }
            }
        }
        Ok(())
    }
}

impl Serialize for GtidSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GtidSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for GtidSet {
    type Err = NotAGtidSet;

    fn from_str(text: &str) -> Result<Self, NotAGtidSet> {
        let refuse = |why| NotAGtidSet {
            text: text.to_owned(),
            why,
        };
        let mut set = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let mut words = part.split(':').map(str::trim);
            let uuid = words.next().and_then(parse_uuid);
            let uuid = uuid.ok_or_else(|| refuse("it must begin with a UUID"))?;
            let (mut tag, mut empty): (Option<Box<str>>, bool) = (None, true);
            for word in words {
                if word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
                    let tail_is_word = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                    if word.len() > 32 || !tail_is_word {
                        return Err(refuse("a tag has letters, digits and '_', 32 at most"));
                    }
                    tag = Some(word.to_ascii_lowercase().into());
                    continue;
                }
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number > 0);
                let (Some(first), Some(last)) = (number(first), number(last)) else {
                    return Err(refuse("numbers follow the UUID, as 1-5"));
                };
                empty = false;
                // As MySQL does: an interval that ends before it begins is empty.
                let source = Source { uuid, tag: tag.clone() };
                set.add(source, first, last);
            }
            if empty {
                return Err(refuse("numbers follow the UUID, as 1-5"));
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const B: &str = "00000000-0000-0000-0000-00000000000b";

    fn set(text: &str) -> GtidSet {
        text.parse().expect(text)
    }

    #[test]
    fn texts_are_read_and_written_as_mysql_does() {
        for (text, written) in [
            (String::new(), String::new()),
            (format!("{A}:1"), format!("{A}:1")),
            (format!("{A}:1-3:4:6-9"), format!("{A}:1-4:6-9")),
            (format!("{A}:7:1-2"), format!("{A}:1-2:7")),
            (format!(" {A}:1-5 ,\n{B}:2"), format!("{B}:2,{A}:1-5")),
            (format!("{A}:tag:1-3"), format!("{A}:tag:1-3")),
            (
                format!("{A}:1-5:Blue:1-3:5:green:2"),
                format!("{A}:1-5:blue:1-3:5:green:2"),
            ),
            (format!("{A}:blue:1,{A}:2"), format!("{A}:2:blue:1")),
            (A.to_uppercase() + ":1", format!("{A}:1")),
            (A.replace('-', "") + ":1", format!("{A}:1")),
        ] {
            assert_eq!(set(&text).to_string(), written, "{text}");
            assert_eq!(set(&written), set(&text));
        }
    }

    #[test]
    fn what_is_no_set_is_refused_with_the_reason() {
        for text in [
            "1-5",
            "x:1",
            A,
            &format!("{A}:0"),
            &format!("{A}:a-b"),
            &format!("{A}:1-x"),
        ] {
            let error = GtidSet::from_str(text).expect_err(text).to_string();
            assert!(error.contains("is not a set of GTIDs"), "{error}");
        }
    }

    #[test]
    fn arithmetic_follows_the_intervals() {
        let all = set(&format!("{A}:1-10,{B}:1-5"));
        let some = set(&format!("{A}:3-4:8,{B}:1-2"));
        assert!(all.contains(&some) && !some.contains(&all));
        assert_eq!(all.subtract(&some), set(&format!("{A}:1-2:5-7:9-10,{B}:3-5")));
        assert_eq!(all.subtract(&some).union(&some), all);
        assert_eq!(some.subtract(&all), GtidSet::default());
        assert_eq!(all.intersection(&some), some);
        assert_eq!(all.count(), 15);
        // an interval that covers several is taken from each of them
        assert_eq!(
            set(&format!("{A}:1-2:5-6:9")).subtract(&set(&format!("{A}:2-8"))),
            set(&format!("{A}:1:9"))
        );
        // a tag is a source of its own
        let tagged = set(&format!("{A}:blue:1-10"));
        assert!(!all.contains(&tagged) && all.is_disjoint(&tagged));
        assert!(all.contains(&GtidSet::default()));
    }

    #[test]
    fn arithmetic_agrees_with_single_numbers() {
        // given every pair of sets over seven numbers, with the results of counting
        let of = |bits: u32| {
            let mut set = GtidSet::default();
            for number in 0..7_u64 {
                if bits >> number & 1 == 1 {
                    set.add(Source { uuid: 1, tag: None }, number + 1, number + 1);
                }
            }
            set
        };
        for a in 0..128 {
            for b in 0..128 {
                assert_eq!(of(a).union(&of(b)), of(a | b));
                assert_eq!(of(a).subtract(&of(b)), of(a & !b));
                assert_eq!(of(a).intersection(&of(b)), of(a & b));
                assert_eq!(of(a).contains(&of(b)), a & b == b);
                assert_eq!(of(a).is_disjoint(&of(b)), a & b == 0);
            }
            assert_eq!(of(a).count(), u64::from(a.count_ones()));
        }
    }
}
