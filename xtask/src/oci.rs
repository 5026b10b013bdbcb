//! Writes container images as OCI archives, without a Docker engine: one layer of files from this machine.
//! The same files always give the same bytes, so that an image's digest says what is in it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

/// What an image holds and how it starts.
#[derive(Default)]
pub(crate) struct Image {
    /// Full references, such as `docker.io/library/name:tag`.
    pub(crate) references: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    /// `uid:gid`, or empty for root.
    pub(crate) user: String,
    pub(crate) labels: Vec<(String, String)>,
    /// File on this machine, and its place in the image.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// A folder that becomes `/`, with everything in it.
    pub(crate) root: Option<PathBuf>,
    /// What the configuration has beside and instead of the above, as the OCI specification spells it.
    pub(crate) config: serde_json::Map<String, serde_json::Value>,
}

/// Names for the users an image runs as; some libraries look their own user up.
const PASSWD: &[u8] =
    b"root:x:0:0::/:/sbin/nologin\nnonroot:x:65532:65532::/:/sbin/nologin\nnobody:x:65534:65534::/:/sbin/nologin\n";
const GROUP: &[u8] = b"root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n";

/// Writes an archive with all of the images. It appears under its name only when it is complete.
pub(crate) fn write(images: &[Image], archive: &Path) -> Result<()> {
    let folder = archive.parent().context("an archive needs a folder")?;
    std::fs::create_dir_all(folder)?;
    let mut out = tar::Builder::new(tempfile::NamedTempFile::new_in(folder)?);
    let mut manifests = Vec::new();
    for image in images {
        let (mut layer, digest, size) = layer(image, folder)?;
        append(&mut out, &format!("blobs/sha256/{digest}"), size, &mut layer)?;
        let mut config = json!({
            "architecture": architecture(), "os": "linux",
            "config": {
                "Entrypoint": image.entrypoint, "User": image.user, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                "Labels": image.labels.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
        });
        for (key, value) in &image.config {
            config["config"][key] = value.clone();
        }
        let config = blob(&mut out, "application/vnd.oci.image.config.v1+json", &config)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": format!("sha256:{digest}"), "size": size,
            }],
        });
        let manifest = blob(&mut out, "application/vnd.oci.image.manifest.v1+json", &manifest)?;
        for reference in &image.references {
            let mut entry = manifest.clone();
            let tag = reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
            // containerd goes by the first, every other tool by the second.
            entry["annotations"] =
                json!({ "io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag });
            manifests.push(entry);
        }
    }
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests,
    });
    small(&mut out, "index.json", &serde_json::to_vec(&index)?)?;
    small(&mut out, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let file = out.into_inner()?;
    file.persist(archive)
        .with_context(|| format!("cannot write {}", archive.display()))?;
    Ok(())
}

/// Makes the layer as a temporary file, and tells its digest and size.
fn layer(image: &Image, folder: &Path) -> Result<(File, String, u64)> {
    let mut out = tar::Builder::new(tempfile::tempfile_in(folder)?);
    if let Some(root) = &image.root {
        tree(&mut out, root, root, &Owner::of(image))?;
    } else {
        plain(&mut out, image)?;
    }
    let mut file = out.into_inner()?;
    let size = file.stream_position()?;
    file.rewind()?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash)?;
    file.rewind()?;
    Ok((file, hex(&hash.finalize()), size))
}

/// Who owns what: the image's user its volumes, root everything else.
struct Owner {
    user: (u64, u64),
    volumes: Vec<PathBuf>,
}

impl Owner {
    fn of(image: &Image) -> Self {
        let user = image
            .config
            .get("User")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        let (uid, gid) = user.split_once(':').unwrap_or((user, user));
        let volumes = image.config.get("Volumes").and_then(serde_json::Value::as_object);
        let volumes = volumes
            .into_iter()
            .flatten()
            .map(|(volume, _)| volume.trim_start_matches('/').into());
        Self {
            user: (uid.parse().unwrap_or(0), gid.parse().unwrap_or(0)),
            volumes: volumes.collect(),
        }
    }

    fn set(&self, header: &mut tar::Header, place: &Path) {
        if self.volumes.iter().any(|volume| place.starts_with(volume)) {
            header.set_uid(self.user.0);
            header.set_gid(self.user.1);
        }
    }
}

/// Adds everything below a folder, in the order of names.
fn tree(out: &mut tar::Builder<File>, root: &Path, folder: &Path, owner: &Owner) -> Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let place = path.strip_prefix(root)?;
        let facts = entry.metadata()?;
        let mode = facts.permissions().mode() & 0o1777;
        if facts.is_dir() {
            let mut header = header(tar::EntryType::Directory, mode, 0);
            owner.set(&mut header, place);
            out.append_data(&mut header, place, std::io::empty())?;
            tree(out, root, &path, owner)?;
        } else if facts.is_symlink() {
            let mut header = header(tar::EntryType::Symlink, 0o777, 0);
            out.append_link(&mut header, place, std::fs::read_link(&path)?)?;
        } else {
            let mut file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let mut header = header(tar::EntryType::Regular, mode, facts.len());
            owner.set(&mut header, place);
            out.append_data(&mut header, place, &mut file)?;
        }
    }
    Ok(())
}

/// Adds single files, the folders above them, and names of users.
fn plain(out: &mut tar::Builder<File>, image: &Image) -> Result<()> {
    let mut folders = std::collections::BTreeSet::from(["etc".to_owned(), "tmp".to_owned()]);
    for (_, place) in &image.files {
        let parents = Path::new(place.trim_start_matches('/')).ancestors().skip(1);
        folders.extend(
            parents
                .map(|parent| parent.to_string_lossy().into_owned())
                .filter(|parent| !parent.is_empty()),
        );
    }
    for folder in folders {
        let mut header = header(
            tar::EntryType::Directory,
            if folder == "tmp" { 0o1777 } else { 0o755 },
            0,
        );
        out.append_data(&mut header, format!("{folder}/"), std::io::empty())?;
    }
    small(out, "etc/passwd", PASSWD)?;
    small(out, "etc/group", GROUP)?;
    for (source, place) in &image.files {
        let mut file = File::open(source).with_context(|| format!("cannot read {}", source.display()))?;
        let mut header = header(tar::EntryType::Regular, 0o755, file.metadata()?.len());
        out.append_data(&mut header, place.trim_start_matches('/'), &mut file)?;
    }
    Ok(())
}

/// Adds a JSON blob and returns its descriptor.
fn blob(
    out: &mut tar::Builder<impl Write>,
    media_type: &str,
    content: &serde_json::Value,
) -> Result<serde_json::Value> {
    let bytes = serde_json::to_vec(content)?;
    let digest = hex(&Sha256::digest(&bytes));
    small(out, &format!("blobs/sha256/{digest}"), &bytes)?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
}

fn small(out: &mut tar::Builder<impl Write>, path: &str, bytes: &[u8]) -> Result<()> {
    append(out, path, bytes.len() as u64, &mut &*bytes)
}

fn append(out: &mut tar::Builder<impl Write>, path: &str, size: u64, content: &mut impl Read) -> Result<()> {
    Ok(out.append_data(&mut header(tar::EntryType::Regular, 0o644, size), path, content)?)
}

/// Root's, and as old as time: nothing of the machine or the hour gets into the image.
fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As the OCI specification, Go and Debian spell it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_bytes_and_every_reference_is_listed() {
        // given a program, put into an image with two references
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, "#!").unwrap();
        let image = || Image {
            references: vec!["example.test/a:1".into(), "example.test/b:2".into()],
            entrypoint: vec!["/bin/program".into()],
            user: "65532:65532".into(),
            files: vec![(program.clone(), "/bin/program".into())],
            ..Image::default()
        };
        // when it is written twice
        let archives = ["one.tar", "two.tar"].map(|name| folder.path().join(name));
        for archive in &archives {
            write(&[image()], archive).unwrap();
        }
        // then both are equal, and the index names both references
        let [one, two] = archives.map(|archive| std::fs::read(archive).unwrap());
        assert_eq!(one, two);
        let mut archive = tar::Archive::new(&one[..]);
        let index = archive
            .entries()
            .unwrap()
            .map(Result::unwrap)
            .find(|e| e.path().unwrap().ends_with("index.json"));
        let index: serde_json::Value = serde_json::from_reader(index.unwrap()).unwrap();
        let names: Vec<_> = (0..2)
            .map(|i| &index["manifests"][i]["annotations"]["io.containerd.image.name"])
            .collect();
        assert_eq!(names, ["example.test/a:1", "example.test/b:2"]);
    }

    #[test]
    fn a_root_becomes_a_layer_and_volumes_belong_to_the_user() {
        // given a root with a program, a link and a volume
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        for path in ["usr/bin", "var/lib/db"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        std::fs::write(root.join("usr/bin/db"), "#!").unwrap();
        std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
        let serde_json::Value::Object(config) = json!({"User": "999:998", "Volumes": {"/var/lib/db": {}}}) else {
            panic!("an object");
        };
        // when its layer is made
        let image = Image {
            root: Some(root),
            config,
            ..Image::default()
        };
        let (file, _, _) = layer(&image, folder.path()).unwrap();
        // then everything is there, and the volume is the user's
        let mut archive = tar::Archive::new(file);
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let seen: Vec<_> = entries
            .map(|entry| {
                let path = entry.path().unwrap().display().to_string();
                (path, entry.header().entry_type(), entry.header().uid().unwrap())
            })
            .collect();
        let one = |path: &str| seen.iter().find(|(seen, ..)| seen == path).unwrap().clone();
        assert_eq!(one("bin").1, tar::EntryType::Symlink);
        assert_eq!(one("usr/bin/db").2, 0);
        assert_eq!(one("var/lib/db").2, 999);
    }
}
