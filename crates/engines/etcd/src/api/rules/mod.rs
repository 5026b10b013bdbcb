//! Rules and bounds in the schema: what is refused at admission, with a message that says what to change.
//!
//! Rules are CEL. The API server estimates what a rule may cost from the bounds of what it reads, so every string and
//! list in a rule has one. Empty means unset: rules treat an empty string like a missing field. Rules of change
//! (`oldSelf`) only compare what both sides have set, since compiled clients of the old API drop fields that they do
//! not know when they send an object back; what must not change then is held by the planner ([`crate::api::validate`]).

mod backups;
mod bounds;
mod cluster;

use stateward_core::crd::{Bound, Rule, bound, rule};

pub(crate) use backups::{etcd_backup, etcd_restore};
pub(crate) use bounds::{etcd_backup_bounds, etcd_cluster_bounds, etcd_restore_bounds};
pub(crate) use cluster::etcd_cluster;

const CRON: &str = r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\\S+( +\\S+){4})$";
const CRON_MESSAGE: &str =
    "is not a cron expression: write five fields (minute hour day month weekday), for example \"0 3 * * *\"";
const DURATION: &str = "^([0-9]+(h|m|s))+$";

fn cron() -> String {
    format!("self == '' || self.matches('{CRON}')")
}
