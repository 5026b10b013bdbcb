//! What the API server's answer to a pod, or to a dry run of one, says of the pod itself.
//!
//! With `dryRun=All` a create goes through everything but the store: defaults, mutating admission, validation, validating
//! admission, and last the name, so that "already exists" means that all else was passed. Two answers say nothing of the
//! pod: a quota still counts its predecessor, and a webhook with side effects is not called in a dry run at all.

use kube::core::Status;
use stateward_core::kind::Trouble;
use stateward_core::reason::shared;

use crate::Failure;

/// The answer to a dry run says nothing against the pod.
pub(super) fn passes(status: &Status) -> bool {
    let says = |text| status.message.contains(text);
    match status.code {
        409 => status.reason == "AlreadyExists",
        // plugin/resourcequota
        403 => says("exceeded quota: "),
        // plugin/webhook/errors: NewDryRunUnsupportedErr
        400 => says("does not support dry run"),
        // plugin/webhook: a webhook of before `sideEffects` had to be given
        500 => says("SideEffects is nil"),
        _ => false,
    }
}

/// The pod itself is refused: trying again does not help. Anything else may pass: a webhook that does not answer (500), too many
/// requests, a quota that is used up.
pub(super) fn named(failure: Failure, pod: &str) -> Failure {
    match failure {
        Failure::Kubernetes(kube::Error::Api(status)) if refuses(&status) => Failure::Trouble(Trouble {
            reason: shared::POD_REFUSED,
            message: format!(
                "the API server rejects pod {pod}: {}. Members that run are left as they are; revert or correct this setting",
                status.message
            ),
        }),
        other => other,
    }
}

fn refuses(status: &Status) -> bool {
    let denied = status.message.contains(" denied the request"); // by a webhook, which chooses the code
    !passes(status) && (matches!(status.code, 400 | 403 | 422) || denied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, reason: &str, message: &str) -> Status {
        Status::failure(message, reason).with_code(code)
    }

    /// The messages are those of kube-apiserver 1.37.
    #[test]
    fn only_what_the_api_server_says_of_the_pod_itself_refuses_it() {
        for (code, reason, message, expected) in [
            (409, "AlreadyExists", r#"pods "c-1" already exists"#, (true, false)),
            (
                409,
                "Conflict",
                r#"Operation cannot be fulfilled on resourcequotas "q""#,
                (false, false),
            ),
            (
                403,
                "Forbidden",
                r#"pods "c-1" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3"#,
                (true, false),
            ),
            (
                403,
                "Forbidden",
                r#"pods "c-1" is forbidden: failed quota: q: must specify limits.cpu for: etcd"#,
                (false, true),
            ),
            (
                403,
                "Forbidden",
                r#"pods "c-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true"#,
                (false, true),
            ),
            (
                403,
                "Forbidden",
                r#"pods "c-1" is forbidden: unable to validate against any security context constraint: []"#,
                (false, true),
            ),
            (
                400,
                "BadRequest",
                r#"admission webhook "w.example.com" does not support dry run"#,
                (true, false),
            ),
            (
                400,
                "BadRequest",
                "Pod in version \"v1\" cannot be handled as a Pod: quantities must match",
                (false, true),
            ),
            (
                500,
                "InternalError",
                r#"Internal error occurred: failed calling webhook "w": Webhook SideEffects is nil"#,
                (true, false),
            ),
            (
                500,
                "InternalError",
                r#"Internal error occurred: failed calling webhook "w": connection refused"#,
                (false, false),
            ),
            (
                418,
                "Forbidden",
                r#"pods "c-1" is forbidden: admission webhook "w.example.com" denied the request: no"#,
                (false, true),
            ),
            (
                422,
                "Invalid",
                r#"Pod "c-1" is invalid: spec.nodeSelector: Invalid value: "b c": a valid label must be"#,
                (false, true),
            ),
            (429, "TooManyRequests", "too many requests", (false, false)),
            (
                503,
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
                (false, false),
            ),
        ] {
            let status = status(code, reason, message);
            assert_eq!((passes(&status), refuses(&status)), expected, "{code} {message}");
        }
    }
}
