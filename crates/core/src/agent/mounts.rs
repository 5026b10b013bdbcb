//! What a pod mounts to reach a store: the secret with its credentials, the key for encryption, the claim of a folder.
//! The paths are those of [`Mounts`], where the agent looks.

use k8s_openapi::api::core::v1::{
    KeyToPath, PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeMount,
};

use super::Mounts;
use crate::store::{Encryption, Store};

/// Volumes, and where they are mounted.
#[derive(Default)]
pub struct StoreMounts {
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// Where they are mounted.
    pub mounts: Vec<VolumeMount>,
    /// Before the name of each volume, in pods that have others too.
    pub prefix: &'static str,
    /// The pod starts without the secrets as well, and only reads the claim.
    pub reading_once: bool,
}

impl StoreMounts {
    /// Everything that a store and its files need.
    pub fn add(&mut self, store: Option<Store<'_>>, encryption: Option<&Encryption>) {
        if let Some(name) = store.as_ref().and_then(Store::secret) {
            self.secret("store", name, Mounts::STORE, None);
        }
        if let Some(encryption) = encryption {
            let key = &encryption.secret_key_ref;
            let item = KeyToPath {
                key: key.key.clone().unwrap_or_else(|| "key".into()),
                path: "key".into(),
                ..KeyToPath::default()
            };
            self.secret("encryption", &key.name, Mounts::ENCRYPTION, Some(vec![item]));
        }
        if let Some(Store::File(file)) = store {
            let name = format!("{}claim", self.prefix);
            self.mounts.push(mount(&name, Mounts::CLAIM, self.reading_once));
            self.volumes.push(Volume {
                name,
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: file.claim_name.clone(),
                    read_only: None,
                }),
                ..Volume::default()
            });
        }
    }

    /// A secret as files.
    pub fn secret(&mut self, name: &str, secret: &str, path: &str, items: Option<Vec<KeyToPath>>) {
        let name = format!("{}{name}", self.prefix);
        self.mounts.push(mount(&name, path, true));
        self.volumes.push(Volume {
            name,
            secret: Some(SecretVolumeSource {
                secret_name: Some(secret.to_owned()),
                items,
                optional: self.reading_once.then_some(true),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        });
    }
}

/// One mount.
pub fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}
