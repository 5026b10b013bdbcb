//! A stretch of changes as one file: every revision with its time and events, framed, with a SHA-256 at the end.
//!
//! `"STATEWARD-CHANGES\1\n"`, then records of a length (four bytes, big endian) and a message: first the [`Head`], then one
//! [`Change`] a revision, in order; then a length of zero and the SHA-256 of everything before it.

use std::collections::HashMap;

use crate::client::messages::{DeleteRangeRequest, Event, EventType, Operation, PutRequest, RequestOp};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::agent::certified::Certified;

const MAGIC: &[u8] = b"STATEWARD-CHANGES\x01\n";
const SUM: usize = 32;

/// What a segment covers.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Head {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster: u64,
    #[prost(int64, tag = "2")]
    pub(crate) first: i64,
    #[prost(int64, tag = "3")]
    pub(crate) last: i64,
    /// What is certain of the times of its revisions, and of the one before the first.
    #[prost(message, repeated, tag = "4")]
    pub(crate) certified: Vec<Certified>,
    /// It was written by a release that certifies times; older ones knew only when changes arrived.
    #[prost(bool, tag = "5")]
    pub(crate) certifies: bool,
}

/// One revision.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Change {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
    /// When it was seen, in milliseconds of Unix time.
    #[prost(int64, tag = "2")]
    pub(crate) millis: i64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) events: Vec<Event>,
}

impl Change {
    /// The steps that bring it about again. Leases are left out: nobody renews them, and a key without one stays.
    pub(crate) fn steps(&self) -> Vec<RequestOp> {
        // A transaction of etcd refuses to touch a key twice; of several events of one key the last counts.
        let mut last = HashMap::new();
        for (place, event) in self.events.iter().enumerate() {
            if let Some(kv) = &event.kv {
                last.insert(&kv.key, place);
            }
        }
        let counts =
            |(place, event): &(usize, &Event)| event.kv.as_ref().is_some_and(|kv| last.get(&kv.key) == Some(place));
        self.events
            .iter()
            .enumerate()
            .filter(counts)
            .filter_map(|(_, event)| {
                let kv = event.kv.clone()?;
                let operation = if event.kind == i32::from(EventType::Delete) {
                    Operation::DeleteRange(DeleteRangeRequest {
                        key: kv.key,
                        range_end: Vec::new(),
                    })
                } else {
                    Operation::Put(PutRequest {
                        key: kv.key,
                        value: kv.value,
                    })
                };
                Some(RequestOp {
                    operation: Some(operation),
                })
            })
            .collect()
    }
}

/// The bytes of a segment.
pub(crate) fn write(head: &Head, changes: &[Change]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let mut record = |message: Vec<u8>| {
        out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(&message);
    };
    record(head.encode_to_vec());
    changes.iter().for_each(|change| record(change.encode_to_vec()));
    out.extend_from_slice(&0_u32.to_be_bytes());
    let sum = Sha256::digest(&out);
    out.extend_from_slice(&sum);
    out
}

/// Reads a segment; an error in words when it is not whole and in order.
pub(crate) fn read(bytes: &[u8]) -> Result<(Head, Vec<Change>), &'static str> {
    let content_end = bytes.len().checked_sub(SUM).ok_or("it is cut off")?;
    let (content, sum) = bytes.split_at(content_end);
    if Sha256::digest(content).as_slice() != sum {
        return Err("its checksum is wrong");
    }
    let mut rest = content.strip_prefix(MAGIC).ok_or("it is no file of changes")?;
    let mut next = || -> Result<Option<&[u8]>, &'static str> {
        let (length, behind) = rest.split_first_chunk::<4>().ok_or("it is cut off")?;
        let length = u32::from_be_bytes(*length) as usize;
        if length == 0 {
            return if behind.is_empty() {
                Ok(None)
            } else {
                Err("it goes on behind its end")
            };
        }
        let message = behind.get(..length).ok_or("it is cut off")?;
        rest = &behind[length..];
        Ok(Some(message))
    };
    let head = next()?.ok_or("it is empty")?;
    let head = Head::decode(head).map_err(|_| "its head cannot be read")?;
    let mut changes: Vec<Change> = Vec::new();
    while let Some(message) = next()? {
        let change = Change::decode(message).map_err(|_| "a change in it cannot be read")?;
        let after = changes.last().map_or(head.first - 1, |before| before.revision);
        if change.revision <= after || change.revision > head.last {
            return Err("its changes are not in order");
        }
        changes.push(change);
    }
    Ok((head, changes))
}

#[cfg(test)]
mod tests {
    use crate::client::messages::KeyValue;

    use super::*;

    fn event(kind: EventType, key: &str, value: &str) -> Event {
        Event {
            kind: kind.into(),
            kv: Some(KeyValue {
                key: key.into(),
                value: value.into(),
                ..KeyValue::default()
            }),
        }
    }

    #[test]
    fn what_is_written_is_read_and_harm_is_noticed() {
        let head = Head {
            cluster: 7,
            first: 5,
            last: 9,
            certified: vec![Certified {
                revision: 9,
                seen: 2,
                complete: 1,
            }],
            certifies: true,
        };
        let change = |revision| Change {
            revision,
            millis: 1,
            events: vec![event(EventType::Put, "a", "1"), event(EventType::Delete, "b", "")],
        };
        let changes = vec![change(5), change(9)];
        let bytes = write(&head, &changes);
        assert_eq!(read(&bytes), Ok((head.clone(), changes.clone())));
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err());
        }
        for at in 0..bytes.len() {
            let mut harmed = bytes.clone();
            harmed[at] ^= 1;
            assert!(read(&harmed).is_err(), "byte {at}");
        }
        assert!(read(&write(&head, &[change(9), change(5)])).is_err());
        assert!(read(&write(&head, &[change(10)])).is_err());
    }

    #[test]
    fn of_several_events_of_a_key_the_last_counts() {
        let change = Change {
            revision: 1,
            millis: 0,
            events: vec![
                event(EventType::Put, "a", "1"),
                event(EventType::Put, "b", "1"),
                event(EventType::Delete, "a", ""),
            ],
        };
        let steps = change.steps();
        assert_eq!(steps.len(), 2);
        assert!(matches!(&steps[0].operation, Some(Operation::Put(put)) if put.key == b"b"));
        assert!(matches!(&steps[1].operation, Some(Operation::DeleteRange(gone)) if gone.key == b"a"));
    }
}
