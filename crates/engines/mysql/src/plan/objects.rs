//! The objects that exist once for a cluster: Secrets, Services, my.cnf, disruption budget and network policy.

use super::round::{Flow, Round, View, Work};
use crate::action::Action;
use crate::manifests;
use crate::reason::Reason;
use crate::world::{Object, Taken};

/// What every cluster has. The MySQLBackup of `spec.backup` comes with that field.
const OBJECTS: [Object; 6] = [
    Object::Config,
    Object::Headless,
    Object::PrimaryService,
    Object::ReadService,
    Object::Budget,
    Object::NetworkPolicy,
];

pub(super) fn objects(view: &View<'_>, round: &mut Round) -> Flow {
    match &view.world.taken {
        Some(Taken::Name(why)) => {
            round.say(Work::Blocked, Reason::NameTaken, why.clone());
            return Flow::Stop;
        }
        Some(Taken::Missing(why)) => {
            round.say(Work::Blocked, Reason::SecretMissing, why.clone());
            // A cluster that runs goes on with what it has.
            if !round.memory.founded() {
                return Flow::Stop;
            }
        }
        None => {}
    }
    if !view.world.secrets.complete && view.world.taken.is_none() {
        round.act(Action::EnsureSecrets);
        if !round.memory.founded() {
            round.say(
                Work::Creating,
                Reason::CreatingMembers,
                "creating the Secrets with passwords",
            );
        }
    }
    for object in OBJECTS {
        let wanted = manifests::object_hash(object, view.intent);
        if view.world.objects.get(&object) != Some(&wanted) {
            round.act(Action::Apply(object));
        }
    }
    Flow::On
}
