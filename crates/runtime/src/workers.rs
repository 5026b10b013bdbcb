//! The workers that run, one per object, and which of them look at what.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Key;

/// An object of a kind.
type Id = (&'static str, Key);

/// The workers of all kinds.
#[derive(Default)]
pub struct Workers {
    running: Mutex<HashMap<Id, Arc<Notify>>>,
    references: Mutex<References>,
    tasks: TaskTracker,
}

/// Who looks at what. Only what an object looked at in its last reconcile is kept.
#[derive(Default)]
struct References {
    users: HashMap<Id, HashSet<Id>>,
    /// What each object looks at, and whether it has done so in its present reconcile.
    used: HashMap<Id, HashMap<Id, bool>>,
}

impl References {
    fn drop_reference(&mut self, used: &Id, user: &Id) {
        if let Some(users) = self.users.get_mut(used) {
            users.remove(user);
            if users.is_empty() {
                self.users.remove(used);
            }
        }
    }

    /// Keeps only what was looked at since this was asked last.
    fn sweep(&mut self, user: &Id) {
        let Some(mut used) = self.used.remove(user) else { return };
        let old: Vec<Id> = used
            .iter()
            .filter(|(_, now)| !**now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in old {
            used.remove(&id);
            self.drop_reference(&id, user);
        }
        used.values_mut().for_each(|now| *now = false);
        if !used.is_empty() {
            self.used.insert(user.clone(), used);
        }
    }
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Arc<Notify>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn references(&self) -> MutexGuard<'_, References> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes an object's worker. Several calls while it is busy make one further reconcile.
    pub fn wake(&self, kind: &'static str, key: &Key) {
        if let Some(mailbox) = self.lock().get(&(kind, key.clone())) {
            mailbox.notify_one();
        }
    }

    /// Wakes an object's worker, and starts it where there is none and `start` gives one.
    pub(crate) fn tend<F>(
        &self,
        killed: &CancellationToken,
        kind: &'static str,
        key: &Key,
        start: impl FnOnce(Arc<Notify>) -> Option<F>,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = self.lock();
        let id = (kind, key.clone());
        if let Some(mailbox) = running.get(&id) {
            mailbox.notify_one();
            return;
        }
        let mailbox = Arc::new(Notify::new());
        if let Some(work) = start(mailbox.clone()) {
            mailbox.notify_one();
            running.insert(id, mailbox);
            let killed = killed.clone();
            self.tasks.spawn(async move { killed.run_until_cancelled(work).await });
        }
    }

    /// Ends a worker whose object is gone. `false`: the object is there again.
    pub(crate) fn leave(&self, kind: &'static str, key: &Key, is_there: impl FnOnce() -> bool) -> bool {
        let mut running = self.lock();
        if is_there() {
            return false;
        }
        let id = (kind, key.clone());
        running.remove(&id);
        let mut references = self.references();
        references.sweep(&id);
        references.sweep(&id); // the second time nothing was looked at since
        true
    }

    /// Remembers that an object looks at another, so that a change of that one wakes it.
    pub fn uses(&self, user: (&'static str, &Key), used: (&'static str, Key)) {
        let user = (user.0, user.1.clone());
        let mut references = self.references();
        references.users.entry(used.clone()).or_default().insert(user.clone());
        references.used.entry(user).or_default().insert(used, true);
    }

    /// A reconcile has looked at everything: what it did not look at is forgotten.
    pub(crate) fn has_observed(&self, kind: &'static str, key: &Key) {
        self.references().sweep(&(kind, key.clone()));
    }

    /// Whether anybody looks at an object.
    pub(crate) fn is_used(&self, kind: &'static str, key: &Key) -> bool {
        self.references().users.contains_key(&(kind, key.clone()))
    }

    pub(crate) fn wake_users(&self, kind: &'static str, key: &Key) {
        let users = self.references().users.get(&(kind, key.clone())).cloned();
        for (kind, key) in users.into_iter().flatten() {
            self.wake(kind, &key);
        }
    }

    /// Waits until every worker has ended, so long at most.
    pub async fn ended(&self, limit: Duration) {
        self.tasks.close();
        let _ = tokio::time::timeout(limit, self.tasks.wait()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_looked_at_any_more_wakes_nobody() {
        let workers = Workers::default();
        let key = |name: &str| Key::new("ns", name);
        // given two objects that look at one Secret, and one of them at another
        workers.uses(("A", &key("a")), ("Secret", key("shared")));
        workers.uses(("A", &key("a")), ("Secret", key("own")));
        workers.uses(("B", &key("b")), ("Secret", key("shared")));
        workers.has_observed("A", &key("a"));
        assert!(workers.is_used("Secret", &key("own")));
        // when the first looks only at the shared one, and the second is gone
        workers.uses(("A", &key("a")), ("Secret", key("shared")));
        workers.has_observed("A", &key("a"));
        assert!(workers.leave("B", &key("b"), || false));
        // then nothing else is kept
        assert!(!workers.is_used("Secret", &key("own")));
        assert!(workers.is_used("Secret", &key("shared")));
        assert!(workers.leave("A", &key("a"), || false));
        assert!(!workers.is_used("Secret", &key("shared")));
        let references = workers.references();
        assert!(references.users.is_empty() && references.used.is_empty());
    }
}
