//! What a pod refers to by name, read from the API before its containers are made: ConfigMaps, Secrets, claims' folders,
//! service account tokens. Reads only; what is made of it is decided elsewhere, without the API.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::{Api, Client, ResourceExt};

/// Why a pod's volumes or environment cannot be made yet. The texts are those kubelet shows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("persistentvolumeclaim \"{0}\" not found")]
    NoClaim(String),
    #[error("persistentvolumeclaim \"{0}\" is not bound to a volume yet")]
    Unbound(String),
    #[error("persistentvolume \"{0}\" has no folder on this machine: only local and hostPath volumes work here")]
    NoFolder(String),
    #[error("reading what the pod refers to: {0}")]
    Api(#[from] kube::Error),
    #[error("asking for a service account token: {0}")]
    Token(String),
}

/// A token and when to get the next one.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    renew_at: Timestamp,
}

/// Everything that one pod refers to. Absent keys were asked for and do not exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) config_maps: HashMap<String, ConfigMap>,
    pub(crate) secrets: HashMap<String, Secret>,
    pub(crate) claims: HashMap<String, PathBuf>,
    /// By audience and lifetime.
    tokens: HashMap<(String, i64), Token>,
}

const DEFAULT_LIFETIME: i64 = 3600;

impl Sources {
    pub(crate) fn token(&self, audience: Option<&str>, lifetime: Option<i64>) -> Option<&str> {
        let key = (
            audience.unwrap_or_default().to_string(),
            lifetime.unwrap_or(DEFAULT_LIFETIME),
        );
        self.tokens.get(&key).map(|token| token.text.as_str())
    }

    /// Reads all of it anew; tokens that are still good are kept.
    pub(crate) async fn load(client: &Client, pod: &Pod, former: &Self) -> Result<Self, SourceError> {
        let namespace = pod.namespace().unwrap_or_default();
        let needed = Needed::of(pod);
        let mut sources = Self::default();
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        for name in needed.config_maps {
            if let Some(found) = config_maps.get_opt(&name).await? {
                sources.config_maps.insert(name, found);
            }
        }
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        for name in needed.secrets {
            if let Some(found) = secrets.get_opt(&name).await? {
                sources.secrets.insert(name, found);
            }
        }
        for name in needed.claims {
            let folder = claim_folder(client, &namespace, &name).await?;
            sources.claims.insert(name, folder);
        }
        for (audience, lifetime) in needed.tokens {
            let key = (audience, lifetime);
            let token = match former.tokens.get(&key) {
                Some(token) if Timestamp::now() < token.renew_at => token.clone(),
                _ => request_token(client, pod, &key.0, lifetime).await?,
            };
            sources.tokens.insert(key, token);
        }
        Ok(sources)
    }

    /// Whether the pod refers to this ConfigMap or Secret of its namespace.
    pub(crate) fn refers(pod: &Pod, kind: Kind, name: &str) -> bool {
        let needed = Needed::of(pod);
        match kind {
            Kind::ConfigMap => needed.config_maps.contains(name),
            Kind::Secret => needed.secrets.contains(name),
        }
    }

    /// Whether anything of the pod changes with time or with other objects.
    pub(crate) fn is_mutable(pod: &Pod) -> bool {
        let needed = Needed::of(pod);
        !(needed.config_maps.is_empty() && needed.secrets.is_empty() && needed.tokens.is_empty())
    }
}

/// The kinds whose changes reach running pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
}

#[derive(Default)]
struct Needed {
    config_maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
    claims: BTreeSet<String>,
    tokens: BTreeSet<(String, i64)>,
}

impl Needed {
    fn of(pod: &Pod) -> Self {
        let mut needed = Self::default();
        let Some(spec) = &pod.spec else { return needed };
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            for from in container.env_from.iter().flatten() {
                needed
                    .config_maps
                    .extend(from.config_map_ref.iter().map(|r| r.name.clone()));
                needed.secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
            }
            for from in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
                needed
                    .config_maps
                    .extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
                needed
                    .secrets
                    .extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
            }
        }
        for volume in spec.volumes.iter().flatten() {
            needed
                .config_maps
                .extend(volume.config_map.iter().map(|v| v.name.clone()));
            needed
                .secrets
                .extend(volume.secret.iter().filter_map(|v| v.secret_name.clone()));
            needed
                .claims
                .extend(volume.persistent_volume_claim.iter().map(|v| v.claim_name.clone()));
            // A claim made for this pod alone has the pod's and the volume's name.
            needed.claims.extend(
                volume
                    .ephemeral
                    .iter()
                    .map(|_| format!("{}-{}", pod.name_any(), volume.name)),
            );
            for source in volume.projected.iter().flat_map(|v| v.sources.iter().flatten()) {
                needed
                    .config_maps
                    .extend(source.config_map.iter().map(|v| v.name.clone()));
                needed.secrets.extend(source.secret.iter().map(|v| v.name.clone()));
                needed.tokens.extend(source.service_account_token.iter().map(|t| {
                    (
                        t.audience.clone().unwrap_or_default(),
                        t.expiration_seconds.unwrap_or(DEFAULT_LIFETIME),
                    )
                }));
            }
        }
        needed
    }
}

/// The folder that a bound claim stands for.
pub(crate) async fn claim_folder(client: &Client, namespace: &str, name: &str) -> Result<PathBuf, SourceError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = claims
        .get_opt(name)
        .await?
        .ok_or_else(|| SourceError::NoClaim(name.to_string()))?;
    let bound = claim.status.and_then(|status| status.phase).as_deref() == Some("Bound");
    let volume = claim.spec.and_then(|spec| spec.volume_name).filter(|_| bound);
    let volume = volume.ok_or_else(|| SourceError::Unbound(name.to_string()))?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let spec = volumes.get(&volume).await?.spec.unwrap_or_default();
    let folder = spec
        .local
        .map(|local| local.path)
        .or(spec.host_path.map(|host| host.path));
    folder.map(PathBuf::from).ok_or(SourceError::NoFolder(volume))
}

async fn request_token(client: &Client, pod: &Pod, audience: &str, lifetime: i64) -> Result<Token, SourceError> {
    let namespace = pod.namespace().unwrap_or_default();
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let account = account.unwrap_or_else(|| "default".to_string());
    let audiences: Vec<&str> = Some(audience)
        .filter(|audience| !audience.is_empty())
        .into_iter()
        .collect();
    let body = serde_json::json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": lifetime,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()},
        },
    });
    let request = http::Request::post(format!(
        "/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    ))
    .header(http::header::CONTENT_TYPE, "application/json")
    .body(body.to_string().into_bytes())
    .map_err(|error| SourceError::Token(error.to_string()))?;
    let answer: TokenRequest = client
        .request(request)
        .await
        .map_err(|error| SourceError::Token(error.to_string()))?;
    let status = answer
        .status
        .ok_or_else(|| SourceError::Token("the answer holds no token".to_string()))?;
    // Renewed when four fifths of its life are over, as kubelet does.
    let ends = status.expiration_timestamp.map_or_else(Timestamp::now, |time| time.0);
    let left = ends.duration_since(Timestamp::now()).as_secs().max(0);
    let renew_at = Timestamp::now() + SignedDuration::from_secs(left * 4 / 5);
    let text = status
        .token
        .ok_or_else(|| SourceError::Token("the answer holds no token".to_string()))?;
    Ok(Token { text, renew_at })
}
