//! Images: folders of programs under references and tags. Touches no network; reads folders that were registered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// A folder of programs that pods run as if it were an image: its files appear at `/usr/local/bin`, in front of the host's
/// own programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where the programs are; absent for an image that is just the host's own programs.
    pub folder: Option<PathBuf>,
    /// What runs when a container gives no `command`.
    pub entrypoint: Vec<String>,
    /// What follows when a container gives no `args`.
    pub cmd: Vec<String>,
    /// Variables that every container of this image has.
    pub env: Vec<(String, String)>,
}

impl Image {
    /// The host's own programs and nothing else, with a shell as its command.
    pub fn host() -> Self {
        Self {
            folder: None,
            entrypoint: Vec::new(),
            cmd: vec!["sh".to_string()],
            env: Vec::new(),
        }
    }

    /// The programs of a folder.
    pub fn folder(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: Some(folder.into()),
            ..Self::host()
        }
    }

    /// With what runs when a container gives neither command nor arguments.
    #[must_use]
    pub fn with_cmd<S: Into<String>>(mut self, cmd: impl IntoIterator<Item = S>) -> Self {
        self.cmd = cmd.into_iter().map(Into::into).collect();
        self
    }
}

/// Where images come from.
#[derive(Clone, Debug)]
pub enum ImageSource {
    /// One image under one reference; `name:*` answers for every tag.
    One {
        /// For example `nginx:1.9.1`.
        reference: String,
        /// What it holds.
        image: Image,
    },
    /// A folder with one folder per version (`3.6.16/…`), each an image under every given reference.
    Versions {
        /// The folder of the versions.
        folder: PathBuf,
        /// References with `{version}` in them, for example `quay.io/coreos/etcd:v{version}`.
        references: Vec<String>,
        /// What runs when a container gives no command.
        cmd: Vec<String>,
    },
}

impl ImageSource {
    /// Every etcd in a folder with one folder a version, under the references that etcd's images are published with.
    pub fn etcd(folder: impl Into<PathBuf>) -> Self {
        let names = ["quay.io/coreos/etcd", "gcr.io/etcd-development/etcd"];
        let mut references: Vec<String> = names
            .iter()
            .flat_map(|name| [format!("{name}:v{{version}}"), format!("{name}:{{version}}")])
            .collect();
        references.extend([
            "registry.k8s.io/etcd:{version}-0".to_string(),
            "registry.k8s.io/etcd:v{version}".to_string(),
        ]);
        Self::Versions {
            folder: folder.into(),
            references,
            cmd: vec!["/usr/local/bin/etcd".to_string()],
        }
    }

    /// One program under a name of its own; it is linked or copied into a folder that must stay.
    pub fn program(reference: &str, (name, program): (&str, &Path), folder: &Path) -> std::io::Result<Self> {
        let copy = folder.join(name);
        std::fs::hard_link(program, &copy).or_else(|_| std::fs::copy(program, &copy).map(drop))?;
        let image = Image {
            entrypoint: vec![format!("/usr/local/bin/{name}")],
            cmd: Vec::new(),
            ..Image::folder(folder)
        };
        Ok(Self::One {
            reference: reference.to_owned(),
            image,
        })
    }

    /// The host's programs under the names of the images that are used for their shell.
    pub fn host_programs() -> Vec<Self> {
        ["busybox:*", "alpine:*", "debian:*", "registry.k8s.io/busybox:*"]
            .map(|reference| Self::One {
                reference: reference.to_string(),
                image: Image::host(),
            })
            .into()
    }
}

/// An image that was found for a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) image: Image,
    /// The full reference it is registered under.
    pub(crate) reference: String,
    pub(crate) id: String,
    /// Set when another version than the one asked for answers.
    pub(crate) instead_of: Option<String>,
}

/// No image answers. The text lists what there is.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("image \"{asked}\" is not registered here; {available}")]
pub(crate) struct NotFound {
    asked: String,
    available: String,
}

/// All images of an instance.
pub(crate) struct Images {
    entries: RwLock<BTreeMap<(String, String), Image>>,
    nearest: bool,
    changed: watch::Sender<u64>,
}

impl Images {
    pub(crate) fn new(sources: &[ImageSource], nearest: bool) -> Self {
        let images = Self {
            entries: RwLock::default(),
            nearest,
            changed: watch::channel(0).0,
        };
        for source in sources {
            images.add(source);
        }
        images
    }

    /// Adds images; pods that wait for them start at once.
    pub(crate) fn add(&self, source: &ImageSource) {
        match source {
            ImageSource::One { reference, image } => self.register(reference, image.clone()),
            ImageSource::Versions {
                folder,
                references,
                cmd,
            } => {
                for entry in fs::read_dir(folder)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .filter(|entry| entry.path().is_dir())
                {
                    let Ok(version) = entry.file_name().into_string() else {
                        continue;
                    };
                    for reference in references {
                        let image = Image::folder(entry.path()).with_cmd(cmd);
                        self.register(&reference.replace("{version}", &version), image);
                    }
                }
            }
        }
    }

    fn register(&self, reference: &str, image: Image) {
        write(&self.entries).insert(split(reference), image);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Told whenever an image is added.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn find(&self, reference: &str) -> Result<Found, NotFound> {
        let (name, tag) = split(reference);
        let entries = self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = |tag: &str, instead_of| {
            let image = entries.get(&(name.clone(), tag.to_string()))?;
            let full = format!("{name}:{tag}");
            let id = format!("sha256:{}", hex(&Sha256::digest(format!("{full}{:?}", image.folder))));
            Some(Found {
                image: image.clone(),
                reference: full,
                id,
                instead_of,
            })
        };
        if let Some(exact) = found(&tag, None).or_else(|| found("*", None)) {
            return Ok(exact);
        }
        let same_name = (name.clone(), String::new())..;
        let tags: Vec<&str> = entries
            .range(same_name)
            .take_while(|((n, _), _)| *n == name)
            .map(|((_, tag), _)| tag.as_str())
            .collect();
        if self.nearest
            && let Some(nearest) = nearest(&tag, &tags).and_then(|tag| found(tag, Some(reference.to_string())))
        {
            return Ok(nearest);
        }
        let available = if tags.is_empty() {
            let mut names: Vec<&str> = entries.keys().map(|(name, _)| name.as_str()).collect();
            names.dedup();
            format!("no tag of {name} is, but these images are: {}", names.join(", "))
        } else {
            format!("these tags of {name} are: {}", tags.join(", "))
        };
        Err(NotFound {
            asked: reference.to_string(),
            available,
        })
    }
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A reference in full: Docker's short names mean `docker.io/library/…:latest`. A digest is dropped: folders have none.
fn split(reference: &str) -> (String, String) {
    let reference = reference.split('@').next().unwrap_or_default();
    let (name, tag) = match reference.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (reference, "latest"),
    };
    let has_host = name
        .split_once('/')
        .is_some_and(|(first, _)| first.contains(['.', ':']) || first == "localhost");
    let name = match (has_host, name.contains('/')) {
        (true, _) => name.to_string(),
        (false, true) => format!("docker.io/{name}"),
        (false, false) => format!("docker.io/library/{name}"),
    };
    (name, tag.to_string())
}

/// The tag whose version is nearest: same minor before same major before any, the newer of two equally near.
fn nearest<'a>(asked: &str, tags: &[&'a str]) -> Option<&'a str> {
    let with_v = asked.starts_with('v');
    let asked = version(asked)?;
    tags.iter()
        .filter_map(|tag| Some((version(tag)?, *tag)))
        .min_by_key(|(have, tag)| {
            let away: Vec<u64> = have.iter().zip(&asked).map(|(a, b)| a.abs_diff(*b)).collect();
            let older = *have < asked;
            (away, older, tag.starts_with('v') != with_v)
        })
        .map(|(_, tag)| tag)
}

fn version(tag: &str) -> Option<[u64; 3]> {
    let mut numbers = tag
        .trim_start_matches('v')
        .split(['.', '-', '+'])
        .map(str::parse::<u64>);
    let major = numbers.next()?.ok()?;
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    Some([major, next(), next()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(nearest: bool) -> (tempfile::TempDir, Images) {
        let folder = tempfile::tempdir().unwrap();
        for version in ["3.4.23", "3.5.35", "3.6.16"] {
            fs::create_dir(folder.path().join(version)).unwrap();
        }
        let mut sources = ImageSource::host_programs();
        sources.push(ImageSource::etcd(folder.path()));
        let images = Images::new(&sources, nearest);
        (folder, images)
    }

    #[test]
    fn references_are_understood_as_docker_does() {
        let cases = [
            ("busybox", "docker.io/library/busybox", "latest"),
            ("a/b:1", "docker.io/a/b", "1"),
            ("localhost:5000/x", "localhost:5000/x", "latest"),
            (
                "quay.io/coreos/etcd:v3.2.13@sha256:00",
                "quay.io/coreos/etcd",
                "v3.2.13",
            ),
        ];
        for (reference, name, tag) in cases {
            assert_eq!(split(reference), (name.to_string(), tag.to_string()));
        }
    }

    #[test]
    fn exact_tags_and_wildcards_answer() {
        let (folder, images) = images(false);
        let etcd = images.find("quay.io/coreos/etcd:v3.5.35").unwrap();
        assert_eq!(etcd.image.folder, Some(folder.path().join("3.5.35")));
        assert_eq!(
            images.find("registry.k8s.io/etcd:3.6.16-0").unwrap().image.cmd,
            ["/usr/local/bin/etcd"]
        );
        assert_eq!(images.find("busybox:1.28.0-glibc").unwrap().image, Image::host());
    }

    #[test]
    fn a_missing_tag_says_what_there_is() {
        let (_folder, images) = images(false);
        let message = images.find("quay.io/coreos/etcd:v3.2.13").unwrap_err().to_string();
        assert!(
            message.contains("v3.2.13") && message.contains("v3.4.23, v3.5.35, v3.6.16"),
            "{message}"
        );
        let message = images.find("nginx").unwrap_err().to_string();
        assert!(
            message.contains("docker.io/library/busybox") && message.contains("quay.io/coreos/etcd"),
            "{message}"
        );
    }

    #[test]
    fn the_nearest_version_answers_when_asked_to() {
        let (_folder, images) = images(true);
        for (asked, got) in [
            ("v3.2.13", "v3.4.23"),
            ("v3.5.0", "v3.5.35"),
            ("v3.9.0", "v3.6.16"),
            ("3.5.36", "3.5.35"),
        ] {
            let found = images.find(&format!("quay.io/coreos/etcd:{asked}")).unwrap();
            assert_eq!(found.reference, format!("quay.io/coreos/etcd:{got}"));
            assert!(found.instead_of.is_some());
        }
        assert!(images.find("nginx:1.9").is_err());
    }

    #[test]
    fn waiting_pods_are_told_of_new_images() {
        let (_folder, images) = images(false);
        let changes = images.changes();
        images.add(&ImageSource::One {
            reference: "nginx:1.9.1".into(),
            image: Image::host(),
        });
        assert!(changes.has_changed().unwrap());
        assert!(images.find("nginx:1.9.1").is_ok());
    }
}
