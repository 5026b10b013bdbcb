//! The addresses of one instance: a /16 of the machine's loopback network. Pods have `127.N.64.0/18`;
//! the API server gives services theirs from `127.N.128.0/17`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

/// The loopback network `127.N.0.0/16` of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(pub(crate) u8);

impl Network {
    pub(crate) fn dns(self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.0, 0, 10)
    }
    pub(crate) fn holds(self, address: Ipv4Addr) -> bool {
        address.octets()[..2] == [127, self.0]
    }
    fn pod(self, number: u16) -> Ipv4Addr {
        let [high, low] = (number | 0x4000).to_be_bytes();
        Ipv4Addr::new(127, self.0, high, low)
    }
}

/// Gives each pod an address of its own. A released address is reused as late as possible, so that nobody who still
/// remembers it reaches a stranger.
pub(crate) struct Addresses {
    network: Network,
    taken: Mutex<(u16, BTreeMap<Ipv4Addr, String>)>,
}

const POD_ADDRESSES: u16 = 0x3ffe;

impl Addresses {
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
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
        let former = former.filter(|address| self.network.holds(*address) && !taken.contains_key(address));
        let address = former.or_else(|| {
            (0..POD_ADDRESSES).find_map(|_| {
                *last = *last % POD_ADDRESSES + 1;
                Some(self.network.pod(*last)).filter(|address| !taken.contains_key(address))
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

/// Text with the addresses that mean "this machine" to a program replaced by the pod's own address: pods share the
/// machine's network stack, so `0.0.0.0` would collide with every other pod and `127.0.0.1` would not be the pod itself.
pub(crate) fn localize(text: &str, pod: Ipv4Addr) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, found)) = ["0.0.0.0", "127.0.0.1"]
        .iter()
        .filter_map(|a| Some((rest.find(a)?, *a)))
        .min()
    {
        let (before, after) = (&rest[..at], &rest[at + found.len()..]);
        let part_of_number = |c: char| c.is_ascii_digit() || c == '.';
        let inside = before.ends_with(part_of_number) || after.starts_with(|c: char| c.is_ascii_digit() || c == '/');
        result.push_str(before);
        if inside
            || after
                .strip_prefix('.')
                .is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()))
        {
            result.push_str(found);
        } else {
            result.push_str(&pod.to_string());
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_kept_and_reused_late() {
        let pool = Addresses::new(Network(7));
        let first = pool.assign("a", None).unwrap();
        assert_eq!(first, Ipv4Addr::new(127, 7, 64, 1));
        assert_eq!(pool.assign("a", None), Some(first));
        assert_eq!((pool.of("a"), pool.of("b")), (Some(first), None));
        pool.release("a");
        assert_ne!(pool.assign("b", None), Some(first));
        assert_eq!(pool.assign("c", Some(first)), Some(first));
        assert_ne!(pool.assign("d", Some(first)), Some(first));
        assert_ne!(
            pool.assign("e", Some(Ipv4Addr::new(10, 0, 0, 1))),
            Some(Ipv4Addr::new(10, 0, 0, 1))
        );
    }

    #[test]
    fn the_wildcard_and_loopback_become_the_pods_own() {
        let pod = Ipv4Addr::new(127, 7, 128, 1);
        let cases = [
            (
                "--listen=http://0.0.0.0:2379,http://127.0.0.1:2379",
                "--listen=http://127.7.128.1:2379,http://127.7.128.1:2379",
            ),
            ("0.0.0.0", "127.7.128.1"),
            (
                "10.0.0.0.0 127.0.0.10 127.0.0.1.2 0.0.0.0/0",
                "10.0.0.0.0 127.0.0.10 127.0.0.1.2 0.0.0.0/0",
            ),
            ("end of sentence 127.0.0.1.", "end of sentence 127.7.128.1."),
        ];
        for (text, expected) in cases {
            assert_eq!(localize(text, pod), expected);
        }
    }
}
