//! Members that the operator does not reach: a fault on demand. Where pods share its network stack nothing can be put
//! between it and one of them, so it cuts itself off.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

/// Shared by whoever breaks things and the operator.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    cut: Arc<RwLock<BTreeSet<IpAddr>>>,
}

impl Reach {
    /// From now on nothing is heard of the pod with this address.
    pub fn cut(&self, address: IpAddr) {
        self.cut.write().unwrap_or_else(PoisonError::into_inner).insert(address);
    }

    /// Everybody is reached again.
    pub fn heal(&self) {
        self.cut.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn has(&self, address: IpAddr) -> bool {
        !self
            .cut
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&address)
    }
}
