//! The reasons that users see in conditions and events: one CamelCase word each, which alerts and scripts may rely on.
//!
//! What follows from a reason is decided here, on the value. The word itself is for reading: nothing is decided by it.

use std::fmt;

use crate::api::agent::FailureReason;
use crate::api::etcd_cluster::Phase;

stateward_core::reasons! {
    /// The user wants an EtcdCluster to stand still.
    degrades: false { Paused Hibernating }

    /// An EtcdCluster waits for somebody to act.
    degrades: true {
        AdoptedTlsDiffers AdoptedVersionDiffers AuthorityReplaced BackupNameTaken BackupTooNew CannotHibernate CrashesAgain
        DataDiffers DataNotComparable InvalidSpec NameTaken NoBackup NoSurvivor OldClaimsPresent OtherVoters QuorumLost
        RecordMissing RecoveryFailed RestoreFailed SecretMissing SurvivorIsEphemeral UpgradeHalted VersionRefused
        WaitingForProof WaitingForSurvivors
    }

    /// A member of an EtcdCluster does not run or answer, or etcd takes no writes.
    degrades: true {
        AccessRefused CannotAsk ClaimNotBound CreateContainerConfigError CreateContainerError ErrImageNeverPull
        HandshakeFailed ImageInspectError ImagePullBackOff InvalidImageName MembersUnhealthy NoMemberReady
        NoReply RegistryUnavailable RunContainerError SchedulingGated SignatureValidationFailed StartFailed UnknownMembers
        Unschedulable UnusableAnswer WritesRefused
    }

    /// Something is done with an EtcdCluster, or it waits for something that passes by itself.
    degrades: false {
        AddingMembers Adopted BackupFirst CancellingDowngrade CleaningUp ComparingData Creating Defragmenting Downgrading
        GrowingClaims IssuingCertificates MovingLeadership NoSpace PromotingLearner QuorumServes RecoveringFromBackup
        RecoveringFromSurvivor Relabeling ReleasingMember RemovingMember ReplacingMember RestartingJoin RestartingMembers
        Restoring RollHalted RollingRestart RollingUpgrade RotatingAuthority StartingFirstMember StartingMember SweepingLog
        WaitingForAdopted WaitingForAuthStatus WaitingForCertificates WaitingForClaim WaitingForClusterVersion
        WaitingForDelete WaitingForFirstMember WaitingForHealth WaitingForLearner WaitingForMember WaitingForPod
        WaitingForQuorum WaitingForRelease WaitingForRestore WaitingToReplace
    }

    /// An EtcdBackup or EtcdRestore failed, or waits for somebody to act.
    degrades: true {
        BackupCorrupt BackupFailed BackupMissing CannotDeleteFiles ClusterMissing Failed NodeLost NotFollowing NotNeeded
        NothingToDo PathShared PodEnded PodFailed PodNotStarted PodNotStarting PodVanished Superseded TimedOut WrongAnswer
    }

    /// Something is done for an EtcdBackup or EtcdRestore, or is done with.
    degrades: false {
        Deleting Fetching NotYet Proven Replacing Restored Running Starting Stopping Succeeded Suspended Waiting
        WaitingForCluster
    }

    /// Only events have these.
    degrades: false {
        AlarmCleared BackupProven BackupSucceeded FetchFailed FilesDeleted FilesLeft FollowerEnded FollowerLost Following
        MemberLost MemberReleased MemberRemoved OldClaimsKept RestartingMember RestoreTakenBack RetentionFailed
    }
}

impl Reason {
    /// The phase of an EtcdCluster that waits for this. `began`: its members have answered once.
    pub fn phase(self, began: bool) -> Phase {
        match self {
            Self::RecordMissing | Self::OldClaimsPresent | Self::CannotHibernate => Phase::Failed,
            // A name that is taken while the cluster runs does not end it.
            Self::NameTaken if !began => Phase::Failed,
            _ if began => Phase::Running,
            _ => Phase::Creating,
        }
    }
}

/// Why an EtcdBackup or EtcdRestore is as it is. Agents may be of another version, and name reasons that are not known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Known(Reason),
    OfAgent(FailureReason),
}

impl Cause {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Known(reason) => reason.as_str(),
            Self::OfAgent(reason) => reason.as_str(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Reason> for Cause {
    fn from(reason: Reason) -> Self {
        Self::Known(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_says_what_follows_from_it() {
        use Phase::{Creating, Failed, Running};
        for (reason, degrades, before, after) in [
            (Reason::AsExpected, false, Creating, Running),
            (Reason::Paused, false, Creating, Running),
            (Reason::Hibernating, false, Creating, Running),
            (Reason::SecretMissing, true, Creating, Running),
            (Reason::NameTaken, true, Failed, Running),
            (Reason::RecordMissing, true, Failed, Failed),
            (Reason::OldClaimsPresent, true, Failed, Failed),
            (Reason::CannotHibernate, true, Failed, Failed),
        ] {
            assert_eq!(reason.degrades(), degrades, "{reason}");
            assert_eq!((reason.phase(false), reason.phase(true)), (before, after), "{reason}");
        }
    }
}
