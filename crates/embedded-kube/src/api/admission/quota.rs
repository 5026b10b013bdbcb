//! ResourceQuotas, as far as they count pods.

use serde_json::Value;

use crate::api::errors::{Result, Status};
use crate::api::meta;
use crate::api::rest::Call;
use crate::schema::quantity::Quantity;

/// Rejects a new pod that exceeds a quota of its namespace. As in Kubernetes, it runs after the check of the
/// specification, and in a dry run too.
pub(super) fn check(call: &Call, pod: &Value) -> Result<()> {
    let snapshot = call.server.store.snapshot();
    let used = || {
        let pods = snapshot.values("pods", call.namespace()).into_iter();
        // Pods that have ended are not counted.
        pods.filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
            .count()
    };
    for quota in snapshot.values("resourcequotas", call.namespace()) {
        for counted in ["pods", "count/pods"] {
            let Some(hard) = quota["spec"]["hard"][counted].as_str() else {
                continue;
            };
            let used = used();
            if Quantity::parse(hard) < Quantity::parse(&(used + 1).to_string()) {
                let name = meta::name(quota);
                let why = format!(
                    "exceeded quota: {name}, requested: {counted}=1, used: {counted}={used}, limited: {counted}={hard}"
                );
                return Err(Status::forbidden(&call.resource, meta::name(pod), why));
            }
        }
    }
    Ok(())
}
