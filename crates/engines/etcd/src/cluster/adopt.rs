//! Moving in: a running cluster that somebody else made is taken over. Our members join it one after another, which is `grow`'s work, since
//! members that are not ours neither fill a place nor take one; then, with the user's word, the others leave.
//!
//! Two words of the user, both annotations: the endpoints of the cluster to take over, and later that its members may leave. Between the two
//! lies what only the user can do: lead the clients to the new members.

use super::members::{display_name, owner};
use super::{Effect, LATER, Listed, MemberId, MemberName, MemberProbe, Note, Reason, SOON, Step, View, Work};

/// Instead of a bootstrap: nothing is founded, since the cluster is there. `None`: it answers, and can be taken up.
pub(super) fn begin(view: &View<'_>) -> Option<Step> {
    if view.intent.adopt.is_empty() || view.record.bootstrap.is_some() {
        return None;
    }
    if view.world.list.is_none() {
        let silent: Vec<String> = view.world.probes.iter().filter_map(why_no_reply).collect();
        let why = if silent.is_empty() {
            "it has no leader".to_owned()
        } else {
            silent.join("; ")
        };
        return Some(
            Step::new(
                Work::Creating,
                Reason::WaitingForAdopted,
                format!("the cluster to be adopted (annotation stateward.dev/adopt-endpoints) does not prove its member list: {why}"),
            )
            .wake(LATER),
        );
    }
    if let Some(refused) = super::upgrade_path::check_first(&view.version) {
        return Some(Step::new(Work::Blocked, Reason::VersionRefused, refused));
    }
    if let Some(words) = other_tls(view) {
        return Some(Step::new(Work::Blocked, Reason::AdoptedTlsDiffers, words).wake(LATER));
    }
    let other = answers(view).find(|(_, version)| version.minor() != view.version.minor());
    other.map(|(endpoint, version)| {
        Step::new(
            Work::Blocked,
            Reason::AdoptedVersionDiffers,
            format!(
                "{endpoint} runs etcd {version} and spec.version is {}: set spec.version to a 3.{}.x, and change it when the old members have left",
                view.version,
                version.minor()
            ),
        )
        .wake(LATER)
    })
}

/// Why ours and the old ones could not talk to each other, with what to change: one that joined would only be a voice that nobody hears.
fn other_tls(view: &View<'_>) -> Option<String> {
    let mut urls = view
        .world
        .list
        .iter()
        .flat_map(|list| &list.members)
        .flat_map(|line| &line.peer_urls);
    let theirs = urls.next()?.starts_with("https://");
    let managed = view.world.trust.as_ref().is_some_and(|trust| trust.managed);
    let how = match (theirs, view.intent.tls) {
        (true, false) => {
            "with TLS, and spec.TLS gives no certificates for it: set TLS.static with Secrets of the old cluster's CA"
        }
        (false, true) => {
            "without TLS, and spec.TLS asks for it: remove spec.TLS, and set it when the old members have left"
        }
        (true, true) if managed => {
            "with TLS, and do not trust the certificates of TLS.auto or TLS.certManager: set TLS.static with Secrets of the old cluster's CA"
        }
        _ => return None,
    };
    Some(format!(
        "the members of the cluster to be adopted talk to each other {how}"
    ))
}

/// All of ours are in and well: the others leave one by one, when they may.
pub(super) fn release(view: &View<'_>) -> Option<Step> {
    let list = view.world.list.as_ref()?;
    let strangers: Vec<&Listed> = list
        .members
        .iter()
        .filter(|line| owner(view.intent, line).is_none())
        .collect();
    if view.intent.adopt.is_empty() || strangers.is_empty() {
        return None;
    }
    if view.voters().count() < view.intent.size || !view.all_voters_healthy() {
        return None; // other chapters say what is waited for
    }
    let names = |strangers: &[&Listed]| {
        strangers
            .iter()
            .map(|line| display_name(line).0)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if !view.intent.release_adopted {
        return Some(Step::new(
            Work::Changing,
            Reason::WaitingForRelease,
            format!(
                "all {} members have joined. When every client uses the service {}, set the annotation stateward.dev/release-adopted: \"true\", and the old members leave: {}",
                view.intent.size,
                crate::api::names::client_service(&view.intent.name),
                names(&strangers)
            ),
        ));
    }
    // Leadership goes first, so that no removal costs an election.
    if let Some(leader) = list
        .leader
        .filter(|leader| strangers.iter().any(|line| line.id == *leader))
        && answers(view).any(|(_, version)| version.at_least(3, 3, 0))
        && answered(view, leader)
    {
        let next = view.voters().find(|member| member.is_healthy())?.listed?;
        let hand_over = Effect::MoveLeader {
            from: leader,
            to: next.id,
            cluster: list.cluster,
        };
        return Some(
            Step::new(
                Work::Scaling,
                Reason::MovingLeadership,
                "the leader is one of the old members and hands over before they leave",
            )
            .with([hand_over])
            .wake(SOON),
        );
    }
    let victim = strangers.iter().max_by_key(|line| {
        (
            line.learner,
            !answered(view, line.id),
            list.leader != Some(line.id),
            line.id,
        )
    })?;
    // Those that stay and answer must be a quorum of those that stay (rule 1).
    let stay = list.voters().filter(|line| line.id != victim.id).count();
    let well = view.voters().filter(|member| member.is_healthy()).count()
        + strangers
            .iter()
            .filter(|line| !line.learner && line.id != victim.id && answered(view, line.id))
            .count();
    if !victim.learner && well < stay / 2 + 1 {
        return Some(
            Step::new(
                Work::Scaling,
                Reason::WaitingForHealth,
                format!(
                    "{} leaves when a quorum of the members that stay answers",
                    display_name(victim)
                ),
            )
            .wake(LATER),
        );
    }
    let release = Effect::ReleaseMember {
        member: display_name(victim),
        id: victim.id,
        cluster: list.cluster,
    };
    let note = Note {
        warning: false,
        reason: Reason::MemberReleased,
        message: format!(
            "{} ({}), which was adopted, left; its pod can be deleted",
            display_name(victim),
            victim.id
        ),
    };
    Some(
        Step::new(
            Work::Scaling,
            Reason::ReleasingMember,
            format!("the old members leave: {}", names(&strangers)),
        )
        .with([release, Effect::Tell(note)])
        .wake(LATER),
    )
}

/// What those that were asked by their endpoints said of themselves: endpoint and version.
fn answers<'a>(view: &'a View<'_>) -> impl Iterator<Item = (&'a MemberName, &'a crate::api::EtcdVersion)> {
    let probes = view.world.probes.iter();
    probes
        .filter(|(name, _)| view.intent.adopt.contains(&name.0))
        .filter_map(|(name, probe)| match probe {
            MemberProbe::Reply(reply) => Some((name, &reply.version)),
            MemberProbe::NoReply(_) => None,
        })
}

/// A member answers and sees a leader.
fn answered(view: &View<'_>, id: MemberId) -> bool {
    let mut probes = view.world.probes.values();
    probes.any(|probe| matches!(probe, MemberProbe::Reply(reply) if reply.id == id && reply.leader.is_some()))
}

fn why_no_reply((name, probe): (&MemberName, &MemberProbe)) -> Option<String> {
    match probe {
        MemberProbe::NoReply(why) => Some(format!("{name}: {why}")),
        MemberProbe::Reply(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{Given, nothing, three};

    const OLD: &str = "http://old-0:2379";

    /// Three members of ours have joined `old-0`, which somebody else made.
    fn joined() -> Given {
        let given = three()
            .spec(|intent| intent.adopt = vec![OLD.into()])
            .answers(OLD, MemberId(7));
        given.world(|world| {
            world.list.as_mut().expect("a list").members.push(Listed {
                id: MemberId(7),
                name: Some("old-0".into()),
                peer_urls: vec!["http://old-0:2380".into()],
                learner: false,
            });
        })
    }

    #[test]
    fn nothing_is_founded_while_the_cluster_to_adopt_does_not_answer() {
        let given = nothing().spec(|intent| intent.adopt = vec![OLD.into()]).silent(OLD);
        given.then(Reason::WaitingForAdopted, &[]);
    }

    #[test]
    fn old_members_leave_only_with_the_users_word() {
        joined().then(Reason::WaitingForRelease, &[]);
        let released = joined().spec(|intent| intent.release_adopted = true);
        released.then(
            Reason::ReleasingMember,
            &["release member old-0 (7), which was adopted"],
        );
    }

    #[test]
    fn an_old_leader_hands_over_before_it_leaves() {
        let given = joined().spec(|intent| intent.release_adopted = true);
        let given = given.world(|world| world.list.as_mut().expect("a list").leader = Some(MemberId(7)));
        given.then(Reason::MovingLeadership, &["move leadership from 7 to 1"]);
    }
}
