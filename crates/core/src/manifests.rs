//! Parts of manifests that all engines use.

use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, SeccompProfile};
use sha2::{Digest, Sha256};

/// A user and group of no rights, where the user names none.
const NOBODY: i64 = 65532;

/// A short hash of anything that can be written as JSON. Fields that are not set do not count, so that a new optional
/// field in a later version changes no hash, and so restarts no pod (rule 6).
pub fn hash(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_vec(value).unwrap_or_default();
    Sha256::digest(json)
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// What a certificate is called by: the beginning of its SHA-256.
pub fn fingerprint(certificate: &[u8]) -> String {
    Sha256::digest(certificate)
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The security context of the "restricted" pod security standard.
pub fn restricted() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(NOBODY),
        run_as_group: Some(NOBODY),
        fs_group: Some(NOBODY),
        fs_group_change_policy: Some("OnRootMismatch".into()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// Leaves the choice of users and groups to Kubernetes, where it gives each namespace its own (OpenShift). What the user chose stays.
/// It is no part of the template's hash: a pod that runs is as good as one without.
pub fn leave_user_ids_out(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    if let Some(context) = spec
        .security_context
        .as_mut()
        .filter(|context| **context == restricted())
    {
        context.run_as_user = None;
        context.run_as_group = None;
        context.fs_group = None;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    fn pod_with(context: PodSecurityContext) -> Pod {
        Pod {
            spec: Some(PodSpec {
                security_context: Some(context),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn ids(pod: &Pod) -> [Option<i64>; 3] {
        let context = pod.spec.as_ref().and_then(|spec| spec.security_context.clone());
        let context = context.unwrap_or_default();
        [context.run_as_user, context.run_as_group, context.fs_group]
    }

    #[test]
    fn user_ids_are_left_out_unless_the_user_chose_them() {
        let mut ours = pod_with(restricted());
        assert_eq!(ids(&ours), [Some(NOBODY); 3]);
        leave_user_ids_out(&mut ours);
        assert_eq!(ids(&ours), [None; 3]);
        let context = ours.spec.and_then(|spec| spec.security_context).unwrap_or_default();
        assert_eq!(context.run_as_non_root, Some(true), "the rest of the standard stays");
        let theirs = PodSecurityContext {
            run_as_user: Some(9000),
            ..restricted()
        };
        let mut theirs = pod_with(theirs);
        leave_user_ids_out(&mut theirs);
        assert_eq!(ids(&theirs)[0], Some(9000));
    }
}
