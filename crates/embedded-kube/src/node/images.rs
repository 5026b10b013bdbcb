//! Images: roots or folders of programs under references and tags. Touches no network; reads folders that were registered.

mod folder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// What a container of an image sees as `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// The machine's own programs and libraries, with the programs of a folder in front of them at `/usr/local/bin`.
    Host {
        /// Where those programs are; without it, there are just the machine's own.
        programs: Option<PathBuf>,
    },
    /// This folder and nothing of the machine.
    Own(PathBuf),
}

/// What pods run. Apart from its root this is what the OCI image specification calls the configuration of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What a container sees as `/`.
    pub root: Root,
    /// What runs when a container gives no `command`.
    pub entrypoint: Vec<String>,
    /// What follows when a container gives no `args`.
    pub cmd: Vec<String>,
    /// Variables that every container of this image has.
    pub env: Vec<(String, String)>,
    /// Where it starts when a container gives no `workingDir`.
    pub working_dir: Option<PathBuf>,
    /// User and group when neither the container nor its pod gives one.
    pub user: Option<(u32, u32)>,
    /// Folders that each container has writable and for itself; at its start they hold what the image has there.
    pub volumes: Vec<PathBuf>,
}

impl Image {
    /// The machine's own programs and nothing else, with a shell as its command.
    pub fn host() -> Self {
        Self::new(Root::Host { programs: None })
    }

    /// The machine's own programs, and those of a folder in front of them.
    pub fn programs(folder: impl Into<PathBuf>) -> Self {
        let programs = Some(folder.into());
        Self::new(Root::Host { programs })
    }

    /// A root of its own: nothing of the machine but its kernel.
    pub fn own(root: impl Into<PathBuf>) -> Self {
        Self::new(Root::Own(root.into()))
    }

    fn new(root: Root) -> Self {
        Self {
            root,
            entrypoint: Vec::new(),
            cmd: vec!["sh".to_string()],
            env: Vec::new(),
            working_dir: None,
            user: None,
            volumes: Vec::new(),
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
    /// A folder with one folder per image. Each holds `image.json`: `references`, either `root` (a folder that becomes `/`) or
    /// `programs` (a folder that is laid over the machine's own), both relative to it, and `config` as OCI images have it. What
    /// has no `image.json` is passed over; of two images with one reference, the later `image.json` wins.
    Folder(PathBuf),
}

impl ImageSource {
    /// One program under a name of its own; it is linked or copied into a folder that must stay.
    pub fn program(reference: &str, (name, program): (&str, &Path), folder: &Path) -> std::io::Result<Self> {
        let copy = folder.join(name);
        std::fs::hard_link(program, &copy).or_else(|_| std::fs::copy(program, &copy).map(drop))?;
        let image = Image {
            entrypoint: vec![format!("/usr/local/bin/{name}")],
            cmd: Vec::new(),
            ..Image::programs(folder)
        };
        Ok(Self::One {
            reference: reference.to_owned(),
            image,
        })
    }

    /// The machine's programs under the names of the images that are used for their shell.
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
            ImageSource::Folder(folder) => {
                for (references, image) in folder::images(folder) {
                    for reference in references {
                        self.register(&reference, image.clone());
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
            let id = format!("sha256:{}", hex(&Sha256::digest(format!("{full}{:?}", image.root))));
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

    fn images(nearest: bool) -> Images {
        let mut sources = ImageSource::host_programs();
        for tag in ["v3.4.23", "v3.5.35", "v3.6.16", "3.5.35"] {
            sources.push(ImageSource::One {
                reference: format!("quay.io/coreos/etcd:{tag}"),
                image: Image::programs(tag),
            });
        }
        Images::new(&sources, nearest)
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
        let images = images(false);
        let etcd = images.find("quay.io/coreos/etcd:v3.5.35").unwrap();
        assert_eq!(etcd.image, Image::programs("v3.5.35"));
        assert_eq!(images.find("busybox:1.28.0-glibc").unwrap().image, Image::host());
    }

    #[test]
    fn a_missing_tag_says_what_there_is() {
        let images = images(false);
        let message = images.find("quay.io/coreos/etcd:v3.2.13").unwrap_err().to_string();
        assert!(
            message.contains("v3.2.13") && message.contains("3.5.35, v3.4.23, v3.5.35, v3.6.16"),
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
        let images = images(true);
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
        let images = images(false);
        let changes = images.changes();
        images.add(&ImageSource::One {
            reference: "nginx:1.9.1".into(),
            image: Image::host(),
        });
        assert!(changes.has_changed().unwrap());
        assert!(images.find("nginx:1.9.1").is_ok());
    }
}
