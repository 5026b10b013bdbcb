//! What files are called. A one-shot backup is exactly at `path`; a periodic one at `path_v<revision>_<time>`, as in the
//! old operator; what was streamed between two snapshots in the folder `path_changes/`.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const TIME: &str = "%Y-%m-%d-%H:%M:%S";

/// A periodic snapshot, read from its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snapshot {
    /// When it was begun, by the agent's clock.
    pub time: Timestamp,
    /// The revision that its member had when asked; the snapshot has at least this one.
    pub revision: i64,
    /// The key.
    pub key: String,
}

/// A stretch of changes, read from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// The first revision it covers.
    pub first: i64,
    /// The last one.
    pub last: i64,
    /// When the last one was seen.
    pub time: Timestamp,
}

impl Segment {
    /// Its key. Numbers are padded, so that names sort as revisions do.
    pub fn key(&self, path: &str) -> String {
        let Self { first, last, time } = self;
        format!("{}{first:020}-{last:020}_{}", changes(path), time.as_millisecond())
    }
}

/// The key of a periodic snapshot.
pub fn snapshot(path: &str, revision: i64, time: Timestamp) -> String {
    format!("{path}_v{revision}_{}", time.strftime(TIME))
}

/// What the keys of all periodic snapshots of a path begin with. Others may, too: see [`read_snapshot`].
pub fn snapshots(path: &str) -> String {
    format!("{path}_v")
}

/// Reads the name of a periodic snapshot of a path; none for any other file.
pub fn read_snapshot(path: &str, key: &str) -> Option<Snapshot> {
    let (revision, time) = key.strip_prefix(path)?.strip_prefix("_v")?.split_once('_')?;
    let found = Snapshot {
        time: read_time(time)?,
        revision: revision.parse().ok()?,
        key: key.to_owned(),
    };
    (snapshot(path, found.revision, found.time) == key).then_some(found)
}

fn read_time(text: &str) -> Option<Timestamp> {
    let civil = DateTime::strptime(TIME, text).ok()?;
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Where a one-shot backup is until it is proven: beside its path, under a name of the attempt's own.
pub fn unproven(path: &str, attempt: &str) -> String {
    format!("{}{attempt}", unproven_ones(path))
}

/// What the keys of all one-shot backups of a path begin with that are not proven.
pub fn unproven_ones(path: &str) -> String {
    format!("{path}.unproven-")
}

/// The folder with the changes of a path.
pub fn changes(path: &str) -> String {
    format!("{path}_changes/")
}

/// Reads the name of a segment of a path; none for any other file.
pub fn read_segment(path: &str, key: &str) -> Option<Segment> {
    let (revisions, time) = key.strip_prefix(&changes(path))?.split_once('_')?;
    let (first, last) = revisions.split_once('-')?;
    let found = Segment {
        first: first.parse().ok()?,
        last: last.parse().ok()?,
        time: Timestamp::from_millisecond(time.parse().ok()?).ok()?,
    };
    (found.first <= found.last && found.key(path) == key).then_some(found)
}

/// The file that says up to when nothing else happened: the only one that is written again and again.
pub fn reached(path: &str) -> String {
    format!("{}reached", changes(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_old_operator() {
        let time: Timestamp = "2026-03-01T09:05:07Z".parse().expect("a time");
        let key = snapshot("dir/etcd.backup", 42, time);
        assert_eq!(key, "dir/etcd.backup_v42_2026-03-01-09:05:07");
        let read = read_snapshot("dir/etcd.backup", &key).expect("a snapshot");
        assert_eq!((read.revision, read.time), (42, time));
        for other in [
            "dir/etcd.backup",
            "dir/etcd.backup_v42",
            "dir/etcd.backup_v42_yesterday",
            "dir/etcd.backup_v042_2026-03-01-09:05:07",
            "dir/etcd.backup_v42_2026-03-01-09:05:07.old",
            "dir/etcd.backup_vx_2026-03-01-09:05:07",
        ] {
            assert_eq!(read_snapshot("dir/etcd.backup", other), None, "{other}");
        }
    }

    #[test]
    fn segments_sort_by_revision() {
        let time = Timestamp::from_millisecond(1_700_000_000_123).expect("a time");
        let segment = |first, last| Segment { first, last, time }.key("p");
        let (early, late) = (segment(9, 99), segment(100, 100));
        assert!(early < late);
        let read = read_segment("p", &early).expect("a segment");
        assert_eq!((read.first, read.last, read.time), (9, 99, time));
        assert_eq!(read_segment("p", &reached("p")), None);
        assert_eq!(read_segment("p", "p_changes/5-4_1"), None);
    }
}
