//! TLS: switched on and off while the cluster runs, and the rotation of certificate authorities.
//!
//! **Between peers.** A member can call a peer that listens with TLS only if it has certificates, and it gets them by a
//! restart. So the way is: all members get certificates and still listen in plain text (`Prepared`), then one after
//! another listens with TLS under an `https` address. Back the same way. At every moment each member can reach each other
//! one.
//!
//! **Authorities.** etcd reads its certificates anew at every handshake, but whom it trusts only when it starts. So a new
//! authority comes in three steps: all are told to trust it beside the old one, by a roll; when every pod does, certificates
//! of the new one are handed out, without a restart; when every member was seen with them, the old one is dropped, by a
//! roll. What has to be done follows from the Secrets and the pods alone.

use std::collections::BTreeSet;
use std::time::Duration;

use super::rotation::Rotation;
use super::world::Ca;
use super::{Effect, Note, Reason, Step, View, Work, rotation};

/// How soon to look again at the certificates that members show: kubelets take up to a minute to bring new ones.
const LOOK: Duration = Duration::from_secs(2);

/// What a rotation asks for in this round. Restarts are `rollout`'s.
pub(super) fn rotate(view: &View<'_>) -> Vec<Effect> {
    let Some(trust) = view.world.trust.as_ref().filter(|trust| trust.managed) else {
        return Vec::new();
    };
    let say = |reason, message: &str| {
        Effect::Tell(Note {
            warning: false,
            reason,
            message: message.to_owned(),
        })
    };
    let tell_to_trust = |cas: BTreeSet<Ca>| Effect::TrustCas { cas };
    let had_time = trust.overlap_left.is_zero();
    match rotation::rotation(view.world) {
        // Also while an old CA is being dropped: one that no member trusts yet changes nothing for anybody.
        _ if trust.renew && trust.issued == trust.wanted => vec![
            Effect::RenewCa,
            say(
                Reason::RotatingAuthority,
                "a new CA is made; members learn to trust it beside the old one",
            ),
        ],
        None => Vec::new(),
        Some(Rotation::TrustingBoth) => {
            let both: BTreeSet<Ca> = trust.bundle.union(&trust.wanted).cloned().collect();
            let told = both == trust.bundle && !trust.uneven;
            if told { Vec::new() } else { vec![tell_to_trust(both)] }
        }
        Some(Rotation::Reissuing) if trust.issued != trust.wanted && had_time => vec![
            Effect::IssueCertificates { next: true },
            say(
                Reason::RotatingAuthority,
                "every member trusts the new CA: its certificates are handed out",
            ),
        ],
        Some(Rotation::Reissuing) => Vec::new(),
        Some(Rotation::DroppingOld) if trust.bundle != trust.wanted || trust.uneven => {
            if had_time {
                vec![tell_to_trust(trust.wanted.clone())]
            } else {
                Vec::new()
            }
        }
        Some(Rotation::DroppingOld) => Vec::new(),
    }
}

/// What a rotation waits for, when no roll has anything to do.
pub(super) fn wait(view: &View<'_>) -> Option<Step> {
    let step = rotation::rotation(view.world)?;
    let trust = view.world.trust.as_ref()?;
    let (message, wake) = match step {
        _ if !trust.overlap_left.is_zero() => (
            "the CA is rotated; clients are left time to read their Secret anew (overlapSeconds)",
            trust.overlap_left,
        ),
        Rotation::TrustingBoth => ("members learn to trust the new CA", LOOK),
        Rotation::Reissuing => (
            "the CA is rotated; waiting until every member is seen with its new certificates",
            LOOK,
        ),
        Rotation::DroppingOld => ("the old CA is dropped", LOOK),
    };
    Some(Step::new(Work::Changing, Reason::RotatingAuthority, message).wake(wake))
}

/// Members that trust nobody of those who vouch now could not reach one that is restarted: nothing is restarted.
pub(super) fn estranged(view: &View<'_>) -> Option<Step> {
    let trust = view.world.trust.as_ref()?;
    let side = |all: &BTreeSet<Ca>, side: &str| -> BTreeSet<Ca> {
        all.iter().filter(|name| name.starts_with(side)).cloned().collect()
    };
    let mut pods = view.world.pods.iter();
    let (name, what) = pods.find_map(|(name, pod)| {
        let trusts = pod.trusts.as_ref()?;
        let strange = |which: &&str| {
            let (old, new) = (side(trusts, which), side(&trust.bundle, which));
            !old.is_empty() && !new.is_empty() && old.is_disjoint(&new)
        };
        Some((name, ["peer/", "client/"].into_iter().find(strange)?))
    })?;
    let traffic = if what == "peer/" { "peers" } else { "clients" };
    Some(Step::new(
        Work::Blocked,
        Reason::AuthorityReplaced,
        format!(
            "the certificates for {traffic} come from a CA that {name} does not trust, so a restarted member would be cut off: put the old CA's certificate beside the new one's in the CA file, and take it out when all members were restarted. Or delete all pods at once, with an interruption"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use crate::api::etcd_cluster::Phase;
    use crate::cluster::Trust;
    use crate::cluster::testing::{Given, three};

    use super::super::{Bootstrapped, ClusterId, Intent, Record, Secrets, World, plan};
    use super::*;

    #[test]
    fn a_name_that_is_taken_stops_all_steps_and_not_the_cluster() {
        let cluster = serde_json::json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "spec": {"size": 3, "TLS": {"auto": {}}}});
        let cluster: crate::api::EtcdCluster = serde_json::from_value(cluster).unwrap();
        let intent = Intent::of(&cluster, false).unwrap();
        let world = World {
            secrets: Secrets::Taken("the Secret c-server-tls exists".into()),
            fresh_names: vec!["c-abcdefghij".into()],
            ..World::default()
        };
        let mut record = Record::default();
        for phase in [Phase::Failed, Phase::Running] {
            let plan = plan(&intent, &record, &world, jiff::Timestamp::UNIX_EPOCH);
            assert_eq!(plan.effects, []);
            assert_eq!(plan.report.phase, phase);
            let degraded = &plan.report.degraded;
            assert!(degraded.holds && degraded.reason == Reason::NameTaken, "{degraded:?}");
            assert!(degraded.message.contains("c-server-tls"));
            record.bootstrap = Some(Bootstrapped {
                token: "t".into(),
                first: vec!["c-abcdefghij".into()],
                cluster: Some(ClusterId(7)),
            });
        }
    }

    /// All members trust `peer/old`, and this is in the Secrets.
    fn trust(change: impl FnOnce(&mut Trust)) -> Given {
        let old = BTreeSet::from(["peer/old".to_owned()]);
        three().world(|world| {
            for pod in world.pods.values_mut() {
                pod.trusts = Some(old.clone());
            }
            let mut trust = Trust {
                bundle: old.clone(),
                issued: old.clone(),
                wanted: old,
                managed: true,
                ..Trust::default()
            };
            change(&mut trust);
            world.trust = Some(trust);
        })
    }

    #[test]
    fn a_new_ca_that_is_deleted_is_made_again_at_once() {
        // given a new CA that members are told to trust, and that is deleted before it has issued anything
        let deleted = trust(|trust| {
            trust.bundle.insert("peer/new".to_owned());
            trust.renew = true;
        });
        // then another one is made, without waiting until all members were seen to drop the deleted one
        assert!(deleted.plan().effects.contains(&Effect::RenewCa));
    }

    #[test]
    fn a_new_ca_is_trusted_before_it_is_used() {
        trust(|_| {}).then(Reason::AsExpected, &[]);
        let due = trust(|trust| trust.renew = true);
        due.then(Reason::AsExpected, &["make a new CA"]);
        let made = trust(|trust| trust.wanted = BTreeSet::from(["peer/new".to_owned()]));
        made.then(Reason::RotatingAuthority, &["let 2 CAs be trusted"]);
    }

    #[test]
    fn no_member_is_restarted_into_a_ca_that_the_others_do_not_trust() {
        let given = trust(|trust| {
            trust.managed = false;
            trust.bundle = BTreeSet::from(["peer/new".to_owned()]);
        });
        given.then(Reason::AuthorityReplaced, &[]);
    }
}
