//! The addresses of pods.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use crate::network::Range;

/// Gives each pod an address of its own. A released address is reused as late as possible, so that nobody who still
/// remembers it reaches a stranger.
pub(crate) struct Addresses {
    range: Range,
    taken: Mutex<(u16, BTreeMap<Ipv4Addr, String>)>,
}

const POD_ADDRESSES: u16 = 0x3ffe;

impl Addresses {
    pub(crate) fn new(range: Range) -> Self {
        Self {
            range,
            taken: Mutex::default(),
        }
    }

    /// The pod's address: the one it had before where that is free, else the next free one.
    pub(crate) fn assign(&self, uid: &str, former: Option<Ipv4Addr>) -> Option<Ipv4Addr> {
        let mut guard = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, taken) = &mut *guard;
        if let Some((address, _)) = taken.iter().find(|(_, holder)| *holder == uid) {
            return Some(*address);
        }
        let former = former.filter(|address| self.range.is_pod(*address) && !taken.contains_key(address));
        let address = former.or_else(|| {
            (0..POD_ADDRESSES).find_map(|_| {
                *last = *last % POD_ADDRESSES + 1;
                Some(self.range.pod(*last)).filter(|address| !taken.contains_key(address))
            })
        })?;
        taken.insert(address, uid.to_string());
        Some(address)
    }

    /// The address a pod has now.
    pub(crate) fn of(&self, uid: &str) -> Option<Ipv4Addr> {
        let guard = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        guard
            .1
            .iter()
            .find(|(_, holder)| *holder == uid)
            .map(|(address, _)| *address)
    }

    pub(crate) fn release(&self, uid: &str) {
        self.taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .retain(|_, holder| holder != uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_kept_and_reused_late() {
        let pool = Addresses::new(Range::new(7).unwrap());
        let first = pool.assign("a", None).unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 7, 64, 1));
        assert_eq!(pool.assign("a", None), Some(first));
        assert_eq!((pool.of("a"), pool.of("b")), (Some(first), None));
        pool.release("a");
        assert_ne!(pool.assign("b", None), Some(first));
        assert_eq!(pool.assign("c", Some(first)), Some(first));
        assert_ne!(pool.assign("d", Some(first)), Some(first));
        let foreign = Ipv4Addr::new(10, 8, 64, 1);
        assert_ne!(pool.assign("e", Some(foreign)), Some(foreign));
    }
}
