//! What members say, in the planner's words.

use stateward_etcd::api::EtcdVersion;
use stateward_etcd::cluster::{Alarm, ClusterId, DataHash, Listed, MemberId, MemberList, MemberName, Reply};

use crate::client::calls::Client;
use crate::client::error::{Error, Result};
use crate::client::messages::{AlarmMember, AlarmType, Member, RangeRequest, StatusResponse};

/// A member's answer, and what it knows of everybody's alarms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its words about itself.
    pub reply: Reply,
    /// The alarms of the cluster, as far as it knows.
    pub alarms: Vec<(MemberId, Alarm)>,
}

/// Asks one member about itself, from its own knowledge: no quorum is needed for the answer.
///
/// The list of a learner is empty: etcd refuses nearly every call to one.
pub async fn ask(client: &Client) -> Result<Asked> {
    let status = client.status().await?;
    let header = status.header.clone().unwrap_or_default();
    let version: EtcdVersion = status
        .version
        .parse()
        .map_err(|_| Error::Refused(format!("it says that its version is \"{}\"", status.version)))?;
    let list = if status.is_learner {
        Vec::new()
    } else {
        let response = client.member_list(false).await?;
        response.members.into_iter().map(listed).collect()
    };
    let id = MemberId(header.member_id);
    let leader = Some(status.leader).filter(|leader| *leader != 0).map(MemberId);
    let alarms = alarms(client, &status, &version, leader == Some(id)).await;
    let db_size = unsigned(status.db_size);
    let reply = Reply {
        id,
        cluster: ClusterId(header.cluster_id),
        leader,
        learner: status.is_learner,
        // Before 3.4 nothing says how much is in use: all of it, then, so that nobody defragments for nothing.
        db_in_use: if version.at_least(3, 4, 0) {
            unsigned(status.db_size_in_use)
        } else {
            db_size
        },
        version,
        term: status.raft_term,
        index: status.raft_index,
        db_size,
        list,
        storage_minor: minor(&status.storage_version),
        cluster_minor: None, // asked for only when somebody needs it
        downgrading: status
            .downgrade_info
            .filter(|info| info.enabled)
            .and_then(|info| minor(&info.target_version)),
    };
    Ok(Asked { reply, alarms })
}

/// The alarms that a member knows of. From 3.4 on its status lists them; before, the leader is asked, since the
/// question goes through etcd's log and one a round is enough.
async fn alarms(
    client: &Client,
    status: &StatusResponse,
    version: &EtcdVersion,
    leads: bool,
) -> Vec<(MemberId, Alarm)> {
    if version.at_least(3, 4, 0) {
        return status.errors.iter().filter_map(|text| read_alarm(text)).collect();
    }
    if !leads {
        return Vec::new();
    }
    client
        .alarms()
        .await
        .map(|known| read_alarms(&known))
        .unwrap_or_default()
}

fn read_alarms(known: &[AlarmMember]) -> Vec<(MemberId, Alarm)> {
    let read = |alarm: &AlarmMember| {
        let kind = match alarm.alarm() {
            AlarmType::NoSpace => Alarm::NoSpace,
            AlarmType::Corrupt => Alarm::Corrupt,
            AlarmType::None => return None,
        };
        Some((MemberId(alarm.member_id), kind))
    };
    known.iter().filter_map(read).collect()
}

/// Reads `memberID:1234 alarm:NOSPACE`, as etcd writes alarms into the errors of its status.
fn read_alarm(text: &str) -> Option<(MemberId, Alarm)> {
    let mut id = 0;
    let mut alarm = None;
    for word in text.split_whitespace() {
        match word.split_once(':')? {
            ("memberID", number) => id = number.parse().ok()?,
            ("alarm", "NOSPACE") => alarm = Some(Alarm::NoSpace),
            ("alarm", "CORRUPT") => alarm = Some(Alarm::Corrupt),
            _ => return None,
        }
    }
    Some((MemberId(id), alarm?))
}

/// The hash of a voter's data while the alarm CORRUPT is raised. `None`: this member does not know of the alarm, so that
/// its data may still change.
///
/// The question for the alarms goes through etcd's log and is answered when this member has applied it: by then it has
/// applied the alarm too, and whatever is written later is refused. The hash is asked for at the current revision (0): at any
/// other one etcd may answer with what it kept from a compaction instead of reading its data
/// (server/storage/mvcc/hash.go).
pub async fn hash_of_data(client: &Client) -> Result<Option<DataHash>> {
    let alarms = read_alarms(&client.alarms().await?);
    if !alarms.iter().any(|(_, alarm)| *alarm == Alarm::Corrupt) {
        return Ok(None);
    }
    let reply = client.hash_kv(0).await?;
    Ok(Some(DataHash {
        revision: reply.header.unwrap_or_default().revision,
        compact_revision: reply.compact_revision,
        hash: reply.hash,
    }))
}

/// The member list, proven by a quorum while this runs. Fails when there is none.
///
/// A server from 3.5 on asks a quorum when told to. An older one answers from its own knowledge: there a linearizable
/// read goes first, after which the same member has applied every change that was agreed before the read began.
pub async fn prove_list(client: &Client, reply: &Reply) -> Result<MemberList> {
    let asks_quorum = reply.version.at_least(3, 5, 0);
    if !asks_quorum {
        let read = RangeRequest {
            key: b"\0".to_vec(),
            count_only: true,
            ..RangeRequest::default()
        };
        match client.range(read).await {
            // Rights are looked at after the quorum was asked, so a refusal for lack of them proves as much.
            Ok(_) | Err(Error::Permission(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let response = client.member_list(asks_quorum).await?;
    let header = response.header.unwrap_or_default();
    Ok(MemberList {
        cluster: ClusterId(header.cluster_id),
        leader: reply.leader,
        members: response.members.into_iter().map(listed).collect(),
    })
}

fn listed(member: Member) -> Listed {
    Listed {
        id: MemberId(member.id),
        name: Some(member.name).filter(|name| !name.is_empty()).map(MemberName),
        peer_urls: member.peer_urls,
        learner: member.is_learner,
    }
}

/// The minor of `3.6.0`; servers before 3.6 say nothing.
fn minor(version: &str) -> Option<u64> {
    version.parse::<EtcdVersion>().ok().map(|version| version.minor())
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_read_from_the_status() {
        assert_eq!(
            read_alarm("memberID:10501334649042878790 alarm:NOSPACE "),
            Some((MemberId(10501334649042878790), Alarm::NoSpace))
        );
        assert_eq!(
            read_alarm("memberID:7 alarm:CORRUPT"),
            Some((MemberId(7), Alarm::Corrupt))
        );
        // An ID of 0 is not written.
        assert_eq!(read_alarm("alarm:CORRUPT "), Some((MemberId(0), Alarm::Corrupt)));
        assert_eq!(read_alarm("etcdserver: no leader"), None);
        assert_eq!(read_alarm("memberID:7 alarm:SOMETHING"), None);
    }
}
