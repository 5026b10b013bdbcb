//! What the Kubernetes is: asked once, when the first pod is made.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use stateward_core::manifests::leave_user_ids_out;
use tokio::sync::OnceCell;

/// OpenShift serves it. Its security context constraints give each namespace a range of user IDs, and refuse pods with others.
const CHOOSES_USER_IDS: &str = "security.openshift.io";

/// What was found out.
#[derive(Default)]
pub struct Platform {
    chooses_user_ids: OnceCell<bool>,
}

impl Platform {
    /// A pod as this Kubernetes admits it.
    pub async fn adapt(&self, client: &Client, mut pod: Pod) -> kube::Result<Pod> {
        let ask = async || -> kube::Result<bool> {
            let groups = client.list_api_groups().await?.groups;
            Ok(groups.iter().any(|group| group.name == CHOOSES_USER_IDS))
        };
        if *self.chooses_user_ids.get_or_try_init(ask).await? {
            leave_user_ids_out(&mut pod);
        }
        Ok(pod)
    }
}
