//! The catalogue of images, `pins/images.yaml`: reading it, and what one image of it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::oci;

/// Raised when the same definition is built into something else.
const FORMAT: u32 = 4;

/// What stands in references for the version that an image turned out to have, which only building it tells.
pub(super) const VERSION: &str = "{version}";

/// One program in several versions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Family {
    about: String,
    references: Vec<String>,
    #[serde(default)]
    over_host: bool,
    #[serde(default)]
    config: Config,
    #[serde(default)]
    layers: Vec<Layer>,
    test: Option<Test>,
    tags: BTreeMap<String, Vec<Layer>>,
}

/// What an image says of how it is started: a part of what OCI images have.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Config {
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    pub(crate) env: Vec<String>,
    /// `uid:gid`; without it, root.
    pub(crate) user: String,
    pub(crate) working_dir: String,
    /// Folders that programs write to.
    pub(crate) volumes: Vec<String>,
}

impl Config {
    /// As the OCI image specification has it; what is not set is left out.
    pub(crate) fn oci(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut env = vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        env.extend(self.env.iter().cloned());
        let volumes: serde_json::Map<_, _> = self.volumes.iter().map(|volume| (volume.clone(), json!({}))).collect();
        let all = [
            ("Entrypoint", json!(self.entrypoint)),
            ("Cmd", json!(self.cmd)),
            ("Env", json!(env)),
            ("User", json!(self.user)),
            ("WorkingDir", json!(self.working_dir)),
            ("Volumes", json!(volumes)),
        ];
        let is_set = |value: &serde_json::Value| ![json!([]), json!(""), json!({})].contains(value);
        let set = all.into_iter().filter(|(_, value)| is_set(value));
        set.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// A part of what an image holds; later ones are laid over earlier ones.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) enum Layer {
    /// Debian packages with all that they depend on, the C library too.
    Packages {
        suite: String,
        names: Vec<String>,
        /// What the version of the first package must begin with: a release of Debian may have moved on. That version is the
        /// image's, too.
        version: Option<String>,
    },
    /// A few programs out of Debian packages, without what they depend on.
    Programs {
        suite: String,
        packages: Vec<String>,
        files: Vec<String>,
    },
    /// Programs of a Go module that is pinned in `go/`.
    Go {
        pin: String,
        version: String,
        programs: Vec<String>,
    },
    /// A zip archive of a Maven repository; the one folder it holds becomes `to`.
    Maven {
        artifact: String,
        sha512: String,
        to: String,
    },
    /// Text files.
    Files(BTreeMap<String, String>),
    /// Symbolic links and where they lead.
    Links(BTreeMap<String, String>),
    /// Empty folders.
    Folders(Vec<String>),
}

/// How to see that an image works: a pod of it in which a command succeeds.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Test {
    /// The pod's command and arguments; without them, the image's own.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// Repeated in the running pod until it succeeds.
    pub(crate) check: Vec<String>,
    /// What it must print.
    pub(crate) expect: String,
}

/// One image.
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) tag: String,
    pub(crate) about: String,
    /// With [`VERSION`] in them, where the catalogue has it.
    pub(crate) references: Vec<String>,
    /// Its programs are laid over the machine's own, in the embedded Kubernetes.
    pub(crate) over_host: bool,
    pub(crate) config: Config,
    pub(crate) layers: Vec<Layer>,
    pub(crate) test: Option<Test>,
}

impl Definition {
    /// `name:tag`.
    pub(crate) fn title(&self) -> String {
        format!("{}:{}", self.name, self.tag)
    }

    /// Its folder below that of all images. The name ends with a digest of the definition: whatever changes in it, another folder is
    /// meant, and checkouts that share a cache do not take each other's.
    pub(crate) fn folder(&self, images: &Path) -> PathBuf {
        let all = json!([
            FORMAT,
            self.name,
            self.tag,
            self.references,
            self.over_host,
            self.config,
            self.layers
        ]);
        let digest = Sha256::digest(all.to_string());
        let digest: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        images.join(format!("{}-{}-{digest}", self.name, self.tag))
    }
}

/// Every image, by name and version.
pub(crate) struct Catalogue(Vec<Definition>);

impl Catalogue {
    /// Reads it from a checkout.
    pub(crate) fn read(checkout: &Path) -> Result<Self> {
        let path = checkout.join("pins/images.yaml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is wrong", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        // Through JSON: there an enum is a map with one key.
        let all: serde_json::Value = serde_yaml_ng::from_str(text)?;
        let families: BTreeMap<String, serde_json::Value> = serde_json::from_value(all)?;
        let mut images = Vec::new();
        for (name, family) in families {
            let family: Family = serde_json::from_value(family).with_context(|| name.clone())?;
            let first = images.len();
            for (tag, layers) in &family.tags {
                images.push(image(&name, tag, &family, layers).with_context(|| format!("{name}:{tag}"))?);
            }
            images[first..].sort_by_key(|image: &Definition| version(&image.tag));
        }
        let mut seen = BTreeMap::new();
        for image in &images {
            for reference in image.references.iter().filter(|reference| !reference.contains(VERSION)) {
                if let Some(other) = seen.insert(reference.clone(), image.title()) {
                    bail!("{reference} is both {other} and {}", image.title());
                }
            }
        }
        Ok(Self(images))
    }

    /// Every image.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Definition> {
        self.0.iter()
    }

    /// The images of these names; `name` means all of its versions, `name:tag` one.
    pub(crate) fn find(&self, names: &[String]) -> Result<Vec<&Definition>> {
        let mut found = Vec::new();
        for name in names {
            let before = found.len();
            found.extend(self.all().filter(|image| image.name == *name || image.title() == *name));
            if found.len() == before {
                let all: Vec<_> = self.all().map(Definition::title).collect();
                bail!("there is no image {name}; there are {}", all.join(", "));
            }
        }
        Ok(found)
    }
}

fn image(name: &str, tag: &str, family: &Family, layers: &[Layer]) -> Result<Definition> {
    // `{tag}` stands for the version wherever it is written.
    let own = json!([family.references, family.config, layers, family.layers, family.test]);
    let filled = own.to_string().replace("{tag}", tag);
    let filled = serde_json::from_str(&filled.replace("{architecture}", oci::architecture()))?;
    let (references, config, mut layers, common, test): (Vec<String>, Config, Vec<Layer>, Vec<Layer>, _) =
        serde_json::from_value(filled)?;
    layers.extend(common);
    let user = |text: &str| text.is_empty() || text.split(':').all(|number| number.parse::<u32>().is_ok());
    ensure!(user(&config.user), "user {} is not uid:gid in numbers", config.user);
    let absolute = |path: &String| path.starts_with('/') && !path.contains("..");
    let places = layers.iter().flat_map(|layer| match layer {
        Layer::Files(files) | Layer::Links(files) => files.keys().collect(),
        Layer::Folders(folders) => folders.iter().collect(),
        Layer::Maven { to, .. } => vec![to],
        _ => Vec::new(),
    });
    for place in places.chain(&config.volumes) {
        ensure!(absolute(place), "{place} is not an absolute path");
    }
    let has_version = layers
        .iter()
        .any(|layer| matches!(layer, Layer::Packages { version: Some(_), .. }));
    ensure!(
        has_version || !references.iter().any(|reference| reference.contains(VERSION)),
        "{VERSION} is the version of the first package of a layer that says what it begins with, and there is none"
    );
    Ok(Definition {
        name: name.to_owned(),
        tag: tag.to_owned(),
        about: family.about.clone(),
        references,
        over_host: family.over_host,
        config,
        layers,
        test,
    })
}

/// Orders tags as versions: 10 after 9.
fn version(tag: &str) -> Vec<u64> {
    tag.split(['.', '-']).map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
db:
  about: a database
  references: ['example.test/db:{tag}']
  config: {entrypoint: [/usr/sbin/db], user: '999:999', volumes: [/var/lib/db]}
  layers: [{folders: [/var/lib/db-files]}]
  tags:
    '9.7': [{packages: {suite: sid, names: [db-server], version: '{tag}'}}]
    '10.1': []
";

    #[test]
    fn tags_are_filled_in_and_sorted_as_versions() {
        let catalogue = Catalogue::parse(SMALL).unwrap();
        let titles: Vec<_> = catalogue.all().map(Definition::title).collect();
        assert_eq!(titles, ["db:9.7", "db:10.1"]);
        let first = &catalogue.find(&["db:9.7".into()]).unwrap()[0];
        assert_eq!(first.references, ["example.test/db:9.7"]);
        assert!(matches!(&first.layers[0], Layer::Packages { version: Some(version), .. } if version == "9.7"));
        assert!(matches!(&first.layers[1], Layer::Folders(folders) if folders == &["/var/lib/db-files"]));
        assert!(
            catalogue
                .find(&["cache".into()])
                .is_err_and(|error| error.to_string().contains("db:10.1"))
        );
    }

    #[test]
    fn whatever_changes_in_a_definition_changes_its_folder() {
        let folder = |text: &str| {
            let catalogue = Catalogue::parse(text).unwrap();
            catalogue.find(&["db:9.7".into()]).unwrap()[0].folder(Path::new("/images"))
        };
        assert_eq!(folder(SMALL), folder(SMALL));
        assert_eq!(folder(SMALL), folder(&SMALL.replace("a database", "another")));
        for (from, to) in [
            ("999:999", "0:0"),
            ("suite: sid", "suite: trixie"),
            ("db-files", "files"),
        ] {
            assert_ne!(folder(SMALL), folder(&SMALL.replace(from, to)), "{from}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, named) in [
            ("999:999", "mysql", "mysql"),
            ("db:{tag}", "db", "is both db:9.7 and db:10.1"),
            ("/var/lib/db-files", "var/lib/db-files", "var/lib/db-files"),
            ("folders", "floders", "floders"),
            // 10.1 has no packages.
            ("db:{tag}", "db:{version}", "10.1: {version} is the version"),
        ] {
            let error = format!("{:#}", Catalogue::parse(&SMALL.replace(from, to)).err().unwrap());
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn the_catalogue_of_this_checkout_is_right() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let catalogue = Catalogue::read(checkout).unwrap();
        assert!(catalogue.find(&["etcd".into(), "mysql".into()]).is_ok());
    }
}
