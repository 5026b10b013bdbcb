//! The reasons that users see in conditions and events: one CamelCase word each, which alerts and scripts may rely on.

stateward_core::reasons! {
    /// The user wants a MySQLCluster to stand still.
    degrades: false { Paused Hibernating }

    /// A MySQLCluster waits for somebody to act.
    degrades: true {
        AdoptionRefused BackupFailed CannotHibernate ErrantTransactions InvalidConfig InvalidSpec MajorityOfAckersLost NameTaken
        OldClaimsPresent PrimaryDataLost ReceivedSetsDiffer RecordMissing RolloutHalted SecretMissing ServerOfAnotherCluster
        VersionRefused
    }

    /// A member does not run, reply or follow, or writes wait.
    degrades: true {
        ApplierStopped ClaimNotBound CloneFailed DiskAlmostFull MemberNotReplying MembersUnhealthy NoAckers PodNotRunning
        PrimaryUnavailable ReceiverStopped WritesBlocked WritesNotAcknowledged
    }

    /// Something is done, or waits for what passes by itself.
    degrades: false {
        Adopting ApplyingConfig BackupFirst Bootstrapping Cloning CreatingMembers EnlistingAcker FailingOver GrowingClaims
        IssuingCertificates OpeningPrimary Promoting PurgingBinlogs Quarantining ReleasingAcker Relabeling Rolling
        RotatingPasswords SavingTransactions ScalingIn ScalingOut StartingReplication SwitchingOver Upgrading WaitingForAckers
        WaitingForPods WaitingForReplica WritesAcknowledged
    }

    /// Only events have these.
    degrades: false {
        FailedOver MemberCloned MemberJoined PasswordsRotated PrimaryOpened SwitchedOver SwitchoverGivenUp TransactionsSaved
    }
}
