//! Which transactions a binlog holds, by its events' headers. MySQL's image has no `mysqlbinlog`, and this reads little of a file.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use stateward_mysql::GtidSet;
use stateward_mysql::gtid::Source;

const MAGIC: [u8; 4] = [0xfe, b'b', b'i', b'n'];
/// Timestamp 4, type 1, server ID 4, length 4, next position 4, flags 2.
const HEADER: usize = 19;
/// The event before a transaction: flags 1, UUID 16, number 8, little-endian.
const GTID: u8 = 33;
/// The same for a GTID with a tag, since MySQL 8.3, in another encoding.
const TAGGED_GTID: u8 = 42;

/// What a binlog holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// The transactions without a tag.
    pub(super) gtids: GtidSet,
    /// There are transactions with a tag. Which ones is not read.
    pub(super) tagged: bool,
}

/// Reads a binlog. One that is being written ends where its last complete event does.
pub(super) fn content(file: &Path) -> io::Result<Content> {
    let file = File::open(file)?;
    let length = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(256 * 1024, file);
    let mut magic = [0; MAGIC.len()];
    reader.read_exact(&mut magic)?;
    if magic != MAGIC {
        let reason = "it is no binlog, or an encrypted one";
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let mut content = Content::default();
    let mut at = MAGIC.len() as u64;
    while at + HEADER as u64 <= length {
        let mut header = [0; HEADER];
        reader.read_exact(&mut header)?;
        let [_, _, _, _, kind, _, _, _, _, a, b, c, d, ..] = header;
        let size = u64::from(u32::from_le_bytes([a, b, c, d]));
        if size < HEADER as u64 {
            let reason = format!("the event at {at} has no length");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        if at + size > length {
            break;
        }
        let mut rest = size - HEADER as u64;
        if kind == GTID && rest >= 25 {
            let mut body = [0; 25];
            reader.read_exact(&mut body)?;
            rest -= 25;
            let (mut uuid, mut number) = ([0; 16], [0; 8]);
            uuid.copy_from_slice(&body[1..17]);
            number.copy_from_slice(&body[17..]);
            let number = u64::from_le_bytes(number);
            let uuid = u128::from_be_bytes(uuid);
            content.gtids.add(Source { uuid, tag: None }, number, number);
        }
        content.tagged |= kind == TAGGED_GTID;
        let skip = i64::try_from(rest).map_err(io::Error::other)?;
        reader.seek_relative(skip)?;
        at += size;
    }
    Ok(content)
}

/// Binlogs as bytes.
#[cfg(test)]
pub(super) mod testing {
    use super::{GTID, HEADER, MAGIC};

    /// The UUID of every transaction.
    pub(in crate::agent) const UUID: u128 = u128::from_be_bytes([0xab; 16]);

    pub(super) fn event(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + body.len()).expect("short");
        let mut event = vec![0; 4];
        event.push(kind);
        event.extend([0; 4]);
        event.extend(length.to_le_bytes());
        event.extend([0; 6]);
        event.extend(body);
        event
    }

    pub(super) fn gtid(number: u64) -> Vec<u8> {
        let mut body = vec![1];
        body.extend(UUID.to_be_bytes());
        body.extend(number.to_le_bytes());
        body.extend([7; 20]);
        event(GTID, &body)
    }

    /// A binlog with these transactions.
    pub(in crate::agent) fn binlog(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut bytes = [MAGIC.to_vec(), event(15, &[0; 100])].concat();
        for number in numbers {
            bytes.extend(gtid(number));
            bytes.extend(event(2, b"BEGIN"));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{UUID, binlog, gtid};
    use super::*;

    #[test]
    fn transactions_are_found_up_to_the_last_complete_event() {
        // given a binlog whose last event is being written
        let last = gtid(4);
        let mut bytes = binlog([1, 2]);
        bytes.extend(&last[..last.len() - 1]);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("binlog.000001");
        std::fs::write(&file, bytes).expect("written");
        // when it is read, then the complete ones are found
        let found = content(&file).expect("a binlog");
        assert_eq!(found.gtids, GtidSet::range(UUID, 1, 2));
        assert!(!found.tagged);
        // and another file is refused
        std::fs::write(&file, b"\xfdbin").expect("written");
        assert!(content(&file).is_err());
    }
}
