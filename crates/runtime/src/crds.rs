//! The CustomResourceDefinitions: made at start where they are missing, replaced where they differ from ours.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};

/// Why they are not up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refuses them or does not answer.
    #[error("the CustomResourceDefinitions could not be brought up to date: {0}")]
    Kubernetes(#[from] kube::Error),
    /// They were not taken up.
    #[error("the API server did not take up the CustomResourceDefinition {0} within a minute")]
    NotServed(String),
}

/// Annotation with what the definition was made from, since the API server adds defaults to what it stores.
const HASH: &str = "stateward.dev/schema-hash";
/// How long to wait for the API server to serve a new definition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates or replaces all definitions and waits until they are served.
pub async fn bring_up_to_date(client: &Client, all: Vec<CustomResourceDefinition>) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut made = Vec::new();
    for mut wanted in all {
        let name = wanted.name_any();
        let hash = hash(&wanted);
        wanted.annotations_mut().insert(HASH.to_owned(), hash.clone());
        apply(&api, &name, &hash, wanted).await?;
        made.push(name);
    }
    for name in made {
        let served = tokio::time::timeout(PATIENCE, served(&api, &name)).await;
        match served {
            Ok(done) => done?,
            Err(_) => return Err(Error::NotServed(name)),
        }
    }
    Ok(())
}

async fn apply(
    api: &Api<CustomResourceDefinition>,
    name: &str,
    hash: &str,
    mut wanted: CustomResourceDefinition,
) -> kube::Result<()> {
    loop {
        let params = PostParams::default();
        let done = match api.get_opt(name).await? {
            None => api.create(&params, &wanted).await,
            Some(there) if there.annotations().get(HASH).is_some_and(|there| there == hash) => return Ok(()),
            Some(there) => {
                wanted.metadata.resource_version = there.metadata.resource_version;
                api.replace(name, &params, &wanted).await
            }
        };
        match done {
            Ok(_) => {
                tracing::info!(name, "the CustomResourceDefinition is up to date");
                return Ok(());
            }
            // another operator starts at the same moment: look again
            Err(kube::Error::Api(status)) if status.code == 409 => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) => return Err(error),
        }
    }
}

async fn served(api: &Api<CustomResourceDefinition>, name: &str) -> kube::Result<()> {
    loop {
        let there = api.get(name).await?;
        let conditions = there.status.and_then(|status| status.conditions).unwrap_or_default();
        let established = conditions
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True");
        if established {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A hash that is the same in every process of the same build.
fn hash(wanted: &CustomResourceDefinition) -> String {
    let json = serde_json::to_string(&wanted.spec).unwrap_or_default();
    // FNV-1a: this tells apart our own releases, and guards against nobody
    let hash = json.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
