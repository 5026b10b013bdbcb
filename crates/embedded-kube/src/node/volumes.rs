//! A pod's volumes as folders of the host, and where each container sees them. Touches only the pod's own folders, and
//! claims' and hostPath folders as far as it must create them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Secret, Volume,
};
use kube::ResourceExt;

use super::environment::{self, EnvironmentError, Facts, expand};
use super::sandbox::Mount;
use super::sources::Sources;

/// Why a volume cannot be made. The texts are those kubelet shows in `FailedMount`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {reason}")]
    Setup { volume: String, reason: String },
    #[error("volume mount \"{0}\" names no volume of the pod")]
    NoVolume(String),
    #[error("subPath \"{0}\" must be a relative path without '..'")]
    SubPath(String),
}

/// Where the volumes of one pod live.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    /// On disk: kept while the pod is bound to its node.
    pub(crate) disk: PathBuf,
    /// In memory, where the host has such a place.
    pub(crate) memory: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    bytes: Vec<u8>,
    mode: u32,
}

type Files = BTreeMap<String, File>;

/// Makes all volumes, or brings those whose content comes from the API up to date. Gives the folder of each.
pub(crate) fn prepare(
    pod: &Pod,
    folders: &Folders,
    facts: &Facts,
    sources: &Sources,
) -> Result<BTreeMap<String, PathBuf>, VolumeError> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .map(|volume| {
            let path = make(pod, volume, folders, facts, sources).map_err(|reason| VolumeError::Setup {
                volume: volume.name.clone(),
                reason,
            })?;
            Ok((volume.name.clone(), path))
        })
        .collect()
}

fn make(pod: &Pod, volume: &Volume, folders: &Folders, facts: &Facts, sources: &Sources) -> Result<PathBuf, String> {
    let own = folders.disk.join(&volume.name);
    if let Some(empty) = &volume.empty_dir {
        let memory = empty.medium.as_deref() == Some("Memory");
        let folder = if memory { folders.memory.join(&volume.name) } else { own };
        return create(&folder, 0o777).map(|()| folder).map_err(text);
    }
    if let Some(host) = &volume.host_path {
        return host_path(Path::new(&host.path), host.type_.as_deref().unwrap_or_default());
    }
    let claim = volume
        .persistent_volume_claim
        .as_ref()
        .map(|claim| claim.claim_name.clone());
    let claim = claim.or_else(|| {
        volume
            .ephemeral
            .as_ref()
            .map(|_| format!("{}-{}", pod.name_any(), volume.name))
    });
    if let Some(claim) = claim {
        let folder = sources
            .claims
            .get(&claim)
            .ok_or_else(|| format!("persistentvolumeclaim \"{claim}\" not found"))?;
        fs::create_dir_all(folder).map_err(text)?;
        return Ok(folder.clone());
    }
    let mode = |mode: Option<i32>| u32::try_from(mode.unwrap_or(0o644)).unwrap_or(0o644) & 0o777;
    let mut files = Files::new();
    if let Some(map) = &volume.config_map {
        let optional = map.optional == Some(true);
        config_map_files(
            &mut files,
            sources,
            &map.name,
            map.items.as_deref(),
            mode(map.default_mode),
            optional,
        )?;
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.clone().unwrap_or_default();
        let optional = secret.optional == Some(true);
        secret_files(
            &mut files,
            sources,
            &name,
            secret.items.as_deref(),
            mode(secret.default_mode),
            optional,
        )?;
    } else if let Some(downward) = &volume.downward_api {
        let items = downward.items.as_deref().unwrap_or_default();
        downward_files(&mut files, pod, items, mode(downward.default_mode), facts)?;
    } else if let Some(projected) = &volume.projected {
        projected_files(&mut files, pod, projected, mode(projected.default_mode), facts, sources)?;
    } else {
        return Err("this kind of volume does not exist here".to_string());
    }
    create(&own, 0o755).map_err(text)?;
    publish(&own, &files).map_err(text)?;
    Ok(own)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn create(folder: &Path, mode: u32) -> io::Result<()> {
    if !folder.exists() {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn host_path(path: &Path, kind: &str) -> Result<PathBuf, String> {
    let wrong = |what: &str| {
        Err(format!(
            "hostPath type check failed: {} is not a {what}",
            path.display()
        ))
    };
    match kind {
        "DirectoryOrCreate" => fs::create_dir_all(path).map_err(text)?,
        "FileOrCreate" if !path.exists() => fs::write(path, "").map_err(text)?,
        "Directory" if !path.is_dir() => return wrong("directory"),
        "File" if !path.is_file() => return wrong("file"),
        // No check was asked for; a mount needs something that exists.
        "" if !path.exists() => fs::create_dir_all(path).map_err(text)?,
        _ => {}
    }
    Ok(path.to_path_buf())
}

fn select(
    files: &mut Files,
    what: &str,
    content: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: u32,
    optional: bool,
) -> Result<(), String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        files.extend(content.iter().map(|(key, bytes)| {
            (
                key.clone(),
                File {
                    bytes: bytes.clone(),
                    mode,
                },
            )
        }));
        return Ok(());
    };
    for item in items {
        let mode = item.mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(mode) & 0o777;
        match content.get(&item.key) {
            Some(bytes) => files.insert(
                item.path.clone(),
                File {
                    bytes: bytes.clone(),
                    mode,
                },
            ),
            None if optional => continue,
            None => return Err(format!("{what} references non-existent key: {}", item.key)),
        };
    }
    Ok(())
}

fn config_map_files(
    files: &mut Files,
    sources: &Sources,
    name: &str,
    items: Option<&[KeyToPath]>,
    mode: u32,
    optional: bool,
) -> Result<(), String> {
    let content = |map: &ConfigMap| -> BTreeMap<String, Vec<u8>> {
        let texts = map
            .data
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone().into_bytes()));
        texts
            .chain(
                map.binary_data
                    .iter()
                    .flatten()
                    .map(|(key, value)| (key.clone(), value.0.clone())),
            )
            .collect()
    };
    match sources.config_maps.get(name) {
        Some(map) => select(files, "configmap", &content(map), items, mode, optional),
        None if optional => Ok(()),
        None => Err(format!("configmap \"{name}\" not found")),
    }
}

fn secret_files(
    files: &mut Files,
    sources: &Sources,
    name: &str,
    items: Option<&[KeyToPath]>,
    mode: u32,
    optional: bool,
) -> Result<(), String> {
    let content = |secret: &Secret| -> BTreeMap<String, Vec<u8>> {
        secret
            .data
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.0.clone()))
            .collect()
    };
    match sources.secrets.get(name) {
        Some(secret) => select(files, "secret", &content(secret), items, mode, optional),
        None if optional => Ok(()),
        None => Err(format!("secret \"{name}\" not found")),
    }
}

fn downward_files(
    files: &mut Files,
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    mode: u32,
    facts: &Facts,
) -> Result<(), String> {
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(selector), _) => environment::field(pod, &selector.field_path, facts),
            (None, Some(selector)) => environment::resource(pod, None, selector, facts),
            (None, None) => Err(EnvironmentError::Field(item.path.clone())),
        };
        let bytes = value.map_err(text)?.into_bytes();
        let mode = item.mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(mode) & 0o777;
        files.insert(item.path.clone(), File { bytes, mode });
    }
    Ok(())
}

fn projected_files(
    files: &mut Files,
    pod: &Pod,
    projected: &ProjectedVolumeSource,
    mode: u32,
    facts: &Facts,
    sources: &Sources,
) -> Result<(), String> {
    for source in projected.sources.iter().flatten() {
        if let Some(map) = &source.config_map {
            let optional = map.optional == Some(true);
            config_map_files(files, sources, &map.name, map.items.as_deref(), mode, optional)?;
        }
        if let Some(secret) = &source.secret {
            let optional = secret.optional == Some(true);
            secret_files(files, sources, &secret.name, secret.items.as_deref(), mode, optional)?;
        }
        if let Some(downward) = &source.downward_api {
            downward_files(files, pod, downward.items.as_deref().unwrap_or_default(), mode, facts)?;
        }
        if let Some(token) = &source.service_account_token {
            let bytes = sources.token(token.audience.as_deref(), token.expiration_seconds);
            let bytes = bytes
                .ok_or("the service account token was not given yet")?
                .as_bytes()
                .to_vec();
            files.insert(token.path.clone(), File { bytes, mode });
        }
    }
    Ok(())
}

/// Puts files into a volume so that readers see either all of the old or all of the new ones: the files are links through
/// `..data`, which is moved to the folder of the new version in one step. Kubernetes' own layout, which programs watch.
fn publish(volume: &Path, files: &Files) -> io::Result<()> {
    let data = volume.join("..data");
    let former = fs::read_link(&data).ok();
    if former.is_some() && present(&data, Path::new(""))? == *files {
        return Ok(());
    }
    let version = format!(
        "..{}_{:08x}",
        jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S"),
        rand::random::<u32>()
    );
    let folder = volume.join(&version);
    fs::create_dir_all(&folder)?;
    let mut tops = std::collections::BTreeSet::new();
    for (name, file) in files {
        let relative = Path::new(name);
        if !is_below(relative) {
            return Err(io::Error::other(format!("file name \"{name}\" leaves the volume")));
        }
        let path = folder.join(relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, &file.bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
        tops.extend(relative.components().next().map(|top| PathBuf::from(top.as_os_str())));
    }
    let pointer = volume.join("..data_tmp");
    let _ = fs::remove_file(&pointer);
    symlink(&version, &pointer)?;
    fs::rename(&pointer, &data)?;
    for top in &tops {
        let link = volume.join(top);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(top), link)?;
        }
    }
    for entry in fs::read_dir(volume)?.flatten() {
        let name = PathBuf::from(entry.file_name());
        if !name.to_string_lossy().starts_with("..") && !tops.contains(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    if let Some(former) = former {
        let _ = fs::remove_dir_all(volume.join(former));
    }
    Ok(())
}

fn present(folder: &Path, below: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(folder.join(below))?.flatten() {
        let relative = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files.extend(present(folder, &relative)?);
        } else {
            let mode = entry.metadata()?.permissions().mode() & 0o777;
            files.insert(
                relative.to_string_lossy().into_owned(),
                File {
                    bytes: fs::read(entry.path())?,
                    mode,
                },
            );
        }
    }
    Ok(files)
}

fn is_below(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Where one container sees the pod's volumes.
pub(crate) fn mounts(
    pod: &Pod,
    container: &Container,
    volumes: &BTreeMap<String, PathBuf>,
    variables: &[(String, String)],
) -> Result<Vec<Mount>, VolumeError> {
    let known: BTreeMap<String, String> = variables.iter().cloned().collect();
    let specs: Vec<&Volume> = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).collect();
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let folder = volumes
            .get(&mount.name)
            .ok_or_else(|| VolumeError::NoVolume(mount.name.clone()))?;
        let spec = specs.iter().find(|volume| volume.name == mount.name);
        // What the API holds is shown, never written back.
        let from_api = spec.is_some_and(|volume| {
            volume.config_map.is_some()
                || volume.secret.is_some()
                || volume.projected.is_some()
                || volume.downward_api.is_some()
        });
        let claim_read_only = spec
            .and_then(|volume| volume.persistent_volume_claim.as_ref())
            .is_some_and(|claim| claim.read_only == Some(true));
        let sub_path = mount
            .sub_path_expr
            .as_ref()
            .map(|path| expand(path, &known))
            .or(mount.sub_path.clone());
        let mut source = folder.clone();
        if let Some(sub_path) = sub_path.filter(|path| !path.is_empty()) {
            if !is_below(Path::new(&sub_path)) {
                return Err(VolumeError::SubPath(sub_path));
            }
            source = source.join(&sub_path);
            let failed = |error: io::Error| VolumeError::Setup {
                volume: mount.name.clone(),
                reason: error.to_string(),
            };
            if !source.exists() && !from_api {
                fs::create_dir_all(&source).map_err(failed)?;
            }
            source = source.canonicalize().map_err(failed)?;
        }
        let target = Path::new("/").join(mount.mount_path.trim_end_matches('/').trim_start_matches('/'));
        let read_only = from_api || claim_read_only || mount.read_only == Some(true);
        mounts.push(Mount {
            source,
            target,
            read_only,
        });
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn pod(volumes: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "labels": {"app": "x"}},
            "spec": {"volumes": volumes, "containers": [{"name": "c"}]},
        }))
        .unwrap()
    }

    fn facts() -> Facts {
        Facts {
            pod_ip: Ipv4Addr::new(10, 7, 128, 1),
            host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            hostname: "p".into(),
            api: None,
            allocatable: BTreeMap::new(),
        }
    }

    fn folders(folder: &Path) -> Folders {
        Folders {
            disk: folder.join("disk"),
            memory: folder.join("memory"),
        }
    }

    #[test]
    fn config_maps_and_secrets_are_swapped_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let pod = pod(
            serde_json::json!([{"name": "v", "projected": {"defaultMode": 0o440, "sources": [
                {"configMap": {"name": "m"}},
                {"secret": {"name": "s", "items": [{"key": "k", "path": "deep/er/k", "mode": 0o400}]}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ]}}]),
        );
        let mut sources = Sources::default();
        sources.config_maps.insert(
            "m".into(),
            serde_json::from_str(r#"{"data":{"a":"1","b":"2"}}"#).unwrap(),
        );
        sources
            .secrets
            .insert("s".into(), serde_json::from_str(r#"{"data":{"k":"aGk="}}"#).unwrap());
        let volume = prepare(&pod, &folders(folder.path()), &facts(), &sources).unwrap()["v"].clone();
        let read = |name: &str| fs::read_to_string(volume.join(name)).unwrap();
        assert_eq!(
            (read("a"), read("deep/er/k"), read("labels")),
            ("1".into(), "hi".into(), "app=\"x\"".into())
        );
        let mode = |name: &str| fs::metadata(volume.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a"), mode("deep/er/k")), (0o440, 0o400));
        let version = fs::read_link(volume.join("..data")).unwrap();
        // Unchanged content stays untouched
        prepare(&pod, &folders(folder.path()), &facts(), &sources).unwrap();
        assert_eq!(fs::read_link(volume.join("..data")).unwrap(), version);
        // Changed content replaces all of it and leaves nothing behind
        sources
            .config_maps
            .insert("m".into(), serde_json::from_str(r#"{"data":{"a":"3"}}"#).unwrap());
        prepare(&pod, &folders(folder.path()), &facts(), &sources).unwrap();
        assert_eq!(read("a"), "3");
        assert!(!volume.join("b").exists() && !volume.join(version).exists());
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |volume: serde_json::Value| {
            let pod = pod(serde_json::json!([volume]));
            prepare(&pod, &folders(folder.path()), &facts(), &Sources::default()).map_err(|error| error.to_string())
        };
        assert_eq!(
            refused(serde_json::json!({"name": "v", "secret": {"secretName": "s"}})).unwrap_err(),
            "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found"
        );
        assert!(refused(serde_json::json!({"name": "v", "secret": {"secretName": "s", "optional": true}})).is_ok());
        assert!(refused(serde_json::json!({"name": "v", "nfs": {"server": "x", "path": "/"}})).is_err());
    }

    #[test]
    fn mounts_follow_the_container() {
        let folder = tempfile::tempdir().unwrap();
        let mut pod = pod(serde_json::json!([
            {"name": "e", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}},
            {"name": "c", "configMap": {"name": "c"}}, {"name": "d", "persistentVolumeClaim": {"claimName": "d"}},
        ]));
        pod.spec.as_mut().unwrap().containers[0].volume_mounts = serde_json::from_value(serde_json::json!([
            {"name": "e", "mountPath": "/e/", "subPathExpr": "$(X)/y"}, {"name": "m", "mountPath": "/m"},
            {"name": "c", "mountPath": "/c/f", "subPath": "f"}, {"name": "d", "mountPath": "/d", "readOnly": true},
        ]))
        .unwrap();
        let mut sources = Sources::default();
        sources
            .config_maps
            .insert("c".into(), serde_json::from_str(r#"{"data":{"f":"1"}}"#).unwrap());
        sources.claims.insert("d".into(), folder.path().join("claim"));
        let volumes = prepare(&pod, &folders(folder.path()), &facts(), &sources).unwrap();
        let mut container = pod.spec.as_ref().unwrap().containers[0].clone();
        let variables = [("X".to_string(), "x".to_string())];
        let made = mounts(&pod, &container, &volumes, &variables).unwrap();
        assert_eq!(made[0].target, Path::new("/e"));
        assert!(made[0].source.ends_with("disk/e/x/y") && made[0].source.is_dir() && !made[0].read_only);
        assert!(made[1].source.ends_with("memory/m"));
        assert!(made[2].read_only && fs::read_to_string(&made[2].source).unwrap() == "1");
        assert!(made[3].read_only && made[3].source.ends_with("claim"));
        container.volume_mounts.as_mut().unwrap()[0].sub_path_expr = Some("../..".into());
        assert!(mounts(&pod, &container, &volumes, &[]).is_err());
    }
}
