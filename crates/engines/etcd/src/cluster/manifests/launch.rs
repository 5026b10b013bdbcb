//! How etcd starts, as annotations of its pod. The container takes them as environment when it starts, so changing them
//! changes the next start of a living pod.

use std::collections::BTreeMap;

use crate::cluster::{Intent, Launch, LaunchKind, MemberName};

/// `new` or `existing`.
pub const STATE: &str = "stateward.dev/initial-cluster-state";
/// The members as name=URL, by commas.
pub const MEMBERS: &str = "stateward.dev/initial-cluster";
/// The token.
pub const TOKEN: &str = "stateward.dev/cluster-token";
/// `true` for the one start that drops all other members.
pub const FORCE_NEW: &str = "stateward.dev/force-new-cluster";
/// The kind, for the planner.
pub const KIND: &str = "stateward.dev/launch";
/// What the init container of a restored first member is told; empty once the member takes part.
pub const RESTORE: &str = "stateward.dev/restore-task";
/// How far TLS between peers is on in this pod.
pub const TLS: &str = "stateward.dev/peer-tls";
/// The authorities that this pod's etcd trusts, by commas.
pub const TRUSTS: &str = "stateward.dev/trusted-authorities";
/// Their certificates for peers, which the pod has as a file: what it trusts is settled when it is made.
pub const PEER_CA: &str = "stateward.dev/peer-ca";
/// Their certificates for clients.
pub const CLIENT_CA: &str = "stateward.dev/client-ca";

/// The annotations for a start.
pub fn annotations(intent: &Intent, member: &MemberName, launch: &Launch, tls: bool) -> BTreeMap<String, String> {
    let own = (member.clone(), intent.peer_url(member, tls));
    let (state, token, members) = match launch {
        Launch::Seed { token } => ("new", token.as_str(), vec![own]),
        Launch::Static { token, members } => {
            let all = members
                .iter()
                .map(|name| (name.clone(), intent.peer_url(name, tls)))
                .collect();
            ("new", token.as_str(), all)
        }
        Launch::Join { members } => ("existing", "", members.clone()),
        // Knowing no peer but itself, etcd ends at once if it has no data.
        // So does one whose restored data is gone: it must not found an empty cluster.
        Launch::Sealed | Launch::ForceNew | Launch::Restore { .. } => ("existing", "", vec![own]),
    };
    let restore = match launch {
        Launch::Restore { token, source } => super::restore::task(intent, member, source, token, tls),
        _ => String::new(),
    };
    let members: Vec<String> = members.into_iter().map(|(name, url)| format!("{name}={url}")).collect();
    BTreeMap::from([
        (STATE.to_owned(), state.to_owned()),
        (MEMBERS.to_owned(), members.join(",")),
        (TOKEN.to_owned(), token.to_owned()),
        (FORCE_NEW.to_owned(), matches!(launch, Launch::ForceNew).to_string()),
        (KIND.to_owned(), launch.kind().as_str().to_owned()),
        (RESTORE.to_owned(), restore),
    ])
}

/// The kind that a pod's annotations tell.
pub fn kind(annotations: &BTreeMap<String, String>) -> LaunchKind {
    let word = annotations.get(KIND).map_or("", String::as_str);
    LaunchKind::parse(word).unwrap_or(LaunchKind::Sealed)
}

/// The names in a pod's initial cluster, sorted.
pub fn members(annotations: &BTreeMap<String, String>) -> Vec<MemberName> {
    let text = annotations.get(MEMBERS).map_or("", String::as_str);
    let mut names: Vec<_> = text
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, _)| MemberName(name.to_owned()))
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TlsStage;

    #[test]
    fn the_words_in_annotations_stay_as_they_are() {
        for word in ["Seed", "Static", "Join", "Sealed", "ForceNew", "Restore"] {
            assert_eq!(LaunchKind::parse(word).map(LaunchKind::as_str), Some(word));
        }
        for word in ["Off", "Prepared", "On"] {
            assert_eq!(TlsStage::parse(word).map(TlsStage::as_str), Some(word));
        }
    }
}
