//! Transactions: the servers of a history share one list of them, and a set of transactions is a set of bits.

use std::cell::RefCell;

use crate::gtid::{GtidSet, Source};

/// The index of a transaction in [`Transactions`].
pub(super) type Tx = u16;

const WORDS: usize = 8;

/// How many transactions a history can have.
pub(super) const MOST: usize = WORDS * 64;

/// A set of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits([u64; WORDS]);

impl Bits {
    pub(super) fn insert(&mut self, tx: Tx) {
        if let Some(word) = self.0.get_mut(usize::from(tx) / 64) {
            *word |= 1 << (tx % 64);
        }
    }

    pub(super) fn has(&self, tx: Tx) -> bool {
        let word = self.0.get(usize::from(tx) / 64);
        word.is_some_and(|word| word >> (tx % 64) & 1 == 1)
    }

    fn with(&self, other: &Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|at| each(self.0[at], other.0[at])))
    }

    pub(super) fn or(&self, other: &Self) -> Self {
        self.with(other, |a, b| a | b)
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        self.with(other, |a, b| a & b)
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        self.with(other, |a, b| a & !b)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// All of `other` are in this set.
    pub(super) fn contains(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(own, other)| other & !own == 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Tx> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Tx::try_from(at * 64).ok().map(|first| first + bit as Tx)
            })
        })
    }
}

impl FromIterator<Tx> for Bits {
    fn from_iter<T: IntoIterator<Item = Tx>>(all: T) -> Self {
        let mut bits = Self::default();
        for tx in all {
            bits.insert(tx);
        }
        bits
    }
}

/// What a transaction was written by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// `Action::Found`.
    Founder,
    /// A client of the primary.
    Client,
    /// `Action::Nudge`.
    Heartbeat,
    /// Somebody on a replica.
    Intruder,
}

/// A transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transaction {
    pub(super) uuid: u128,
    pub(super) number: u64,
    pub(super) writer: Writer,
}

/// All transactions of a history.
#[derive(Default)]
pub(super) struct Transactions {
    all: Vec<Transaction>,
    /// Different transactions with the same GTID.
    twins: Vec<(Tx, Tx)>,
    /// The last results of [`gtids`](Self::gtids): members mostly have the same.
    recent: RefCell<(usize, [(Bits, GtidSet); 8])>,
}

impl Transactions {
    /// Clients write no more; heartbeats go on.
    pub(super) fn is_full(&self) -> bool {
        self.all.len() + 100 > MOST
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.all.len() >= MOST
    }

    /// A new transaction of the server `uuid`, which has these: its number is the next one that the server does not know.
    pub(super) fn add(&mut self, uuid: u128, known: &Bits, writer: Writer) -> Tx {
        let own = known
            .iter()
            .filter_map(|tx| self.get(tx))
            .filter(|one| one.uuid == uuid);
        let number = own.map(|one| one.number).max().unwrap_or(0) + 1;
        let tx = Tx::try_from(self.all.len()).unwrap_or(Tx::MAX);
        let twin = self.all.iter().position(|one| one.uuid == uuid && one.number == number);
        if let Some(twin) = twin {
            self.twins.push((Tx::try_from(twin).unwrap_or(Tx::MAX), tx));
        }
        self.all.push(Transaction { uuid, number, writer });
        tx
    }

    pub(super) fn get(&self, tx: Tx) -> Option<&Transaction> {
        self.all.get(usize::from(tx))
    }

    /// A server that has `own` takes this transaction for one that it has.
    pub(super) fn is_in(&self, tx: Tx, own: &Bits) -> bool {
        let twins = || {
            self.twins
                .iter()
                .any(|(a, b)| (*a == tx && own.has(*b)) || (*b == tx && own.has(*a)))
        };
        own.has(tx) || (!self.twins.is_empty() && twins())
    }

    pub(super) fn by(&self, writer: Writer) -> Bits {
        self.which(|one| one.writer == writer)
    }

    pub(super) fn of_server(&self, uuid: u128) -> Bits {
        self.which(|one| one.uuid == uuid)
    }

    fn which(&self, is_one: impl Fn(&Transaction) -> bool) -> Bits {
        let all = self.all.iter().enumerate();
        let those = all.filter(|(_, one)| is_one(one));
        those.filter_map(|(at, _)| Tx::try_from(at).ok()).collect()
    }

    /// Those of a set that a server names.
    pub(super) fn named(&self, set: &GtidSet, among: &Bits) -> Bits {
        among
            .iter()
            .filter(|tx| {
                self.get(*tx)
                    .is_some_and(|one| set.contains(&GtidSet::range(one.uuid, one.number, one.number)))
            })
            .collect()
    }

    /// As servers write a set.
    pub(super) fn gtids(&self, bits: &Bits) -> GtidSet {
        let mut recent = self.recent.borrow_mut();
        if let Some((_, set)) = recent.1.iter().find(|(of, _)| of == bits) {
            return set.clone();
        }
        let mut set = GtidSet::default();
        let mut run: Option<(u128, u64, u64)> = None;
        for one in bits.iter().filter_map(|tx| self.get(tx)) {
            match &mut run {
                Some((uuid, _, last)) if *uuid == one.uuid && one.number == *last + 1 => *last += 1,
                other => {
                    flush(&mut set, *other);
                    *other = Some((one.uuid, one.number, one.number));
                }
            }
        }
        flush(&mut set, run);
        let at = recent.0;
        if let Some(place) = recent.1.get_mut(at) {
            *place = (*bits, set.clone());
        }
        recent.0 = (at + 1) % 8;
        set
    }
}

fn flush(set: &mut GtidSet, run: Option<(u128, u64, u64)>) {
    if let Some((uuid, first, last)) = run {
        set.add(Source { uuid, tag: None }, first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_as_servers_write_it() {
        // given transactions of two servers, in turns
        let mut all = Transactions::default();
        let mut known = Bits::default();
        for uuid in [1, 1, 2, 1, 2] {
            let tx = all.add(uuid, &known, Writer::Client);
            known.insert(tx);
        }
        // then each server's numbers follow each other
        let mut whole = GtidSet::range(1, 1, 3);
        whole.extend(&GtidSet::range(2, 1, 2));
        assert_eq!(all.gtids(&known), whole);
        let some = all.named(&GtidSet::range(1, 2, 9), &known);
        assert_eq!(some.iter().collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_server_that_forgot_a_number_uses_it_again() {
        let mut all = Transactions::default();
        let old = all.add(1, &Bits::default(), Writer::Client);
        let new = all.add(1, &Bits::default(), Writer::Client);
        let has_old = Bits::from_iter([old]);
        assert!(all.is_in(new, &has_old) && !has_old.has(new));
    }
}
