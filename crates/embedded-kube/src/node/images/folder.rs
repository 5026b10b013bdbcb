//! Reading a folder of images: what each says of itself in `image.json`, with the configuration as OCI images have it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use super::{Image, Root};

/// The file that makes a folder an image.
const DESCRIPTION: &str = "image.json";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    references: Vec<String>,
    root: Option<PathBuf>,
    programs: Option<PathBuf>,
    #[serde(default)]
    config: Config,
    /// For whoever built it.
    #[serde(default)]
    #[serde(rename = "built")]
    _built: serde_json::Value,
}

/// What containers take from the configuration of an OCI image.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Config {
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    env: Vec<String>,
    user: String,
    working_dir: PathBuf,
    volumes: BTreeMap<PathBuf, serde_json::Value>,
}

/// The images of a folder with their references, the oldest first.
pub(super) fn images(folder: &Path) -> Vec<(Vec<String>, Image)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .filter_map(|entry| {
            let described = fs::metadata(entry.path().join(DESCRIPTION)).ok()?;
            Some((described.modified().ok()?, entry.path()))
        })
        .collect();
    found.sort();
    let read = |(_, folder): (_, PathBuf)| match image(&folder) {
        Ok(image) => Some(image),
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "this image cannot be used");
            None
        }
    };
    found.into_iter().filter_map(read).collect()
}

fn image(folder: &Path) -> Result<(Vec<String>, Image), String> {
    let text = fs::read_to_string(folder.join(DESCRIPTION)).map_err(|error| error.to_string())?;
    let described: Description = serde_json::from_str(&text).map_err(|error| format!("{DESCRIPTION}: {error}"))?;
    let root = match (described.root, described.programs) {
        (Some(root), None) => Root::Own(folder.join(root)),
        (None, programs) => Root::Host {
            programs: programs.map(|programs| folder.join(programs)),
        },
        (Some(_), Some(_)) => return Err(format!("{DESCRIPTION}: give `root` or `programs`, not both")),
    };
    let config = described.config;
    let env = config.env.iter().map(|line| line.split_once('=').unwrap_or((line, "")));
    let image = Image {
        root,
        entrypoint: config.entrypoint,
        cmd: config.cmd,
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        working_dir: Some(config.working_dir).filter(|folder| !folder.as_os_str().is_empty()),
        user: user(&config.user)?,
        volumes: config.volumes.into_keys().collect(),
    };
    Ok((described.references, image))
}

/// `uid` or `uid:gid`; names are not looked up.
fn user(text: &str) -> Result<Option<(u32, u32)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    match (uid.parse(), gid.parse()) {
        (Ok(uid), Ok(gid)) => Ok(Some((uid, gid))),
        _ => Err(format!("User: \"{text}\" is not numeric; write `uid:gid`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join(DESCRIPTION), text).unwrap();
    }

    #[test]
    fn an_image_is_what_its_description_says() {
        // given one image with a root of its own, one of programs, one that is not finished and one that is wrong
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            "db",
            r#"{"references": ["db:1", "db:latest"], "root": "root", "built": {"from": "x"}, "config": {
                "Entrypoint": ["/usr/sbin/db"], "Cmd": ["--help"], "Env": ["A=b=c"], "User": "999:998", "WorkingDir": "/srv",
                "Volumes": {"/var/lib/db": {}}, "Labels": {"x": "y"}}}"#,
        );
        write(
            folder.path(),
            "tool",
            r#"{"references": ["tool:1"], "programs": "programs"}"#,
        );
        fs::create_dir(folder.path().join("unfinished")).unwrap();
        write(
            folder.path(),
            "wrong",
            r#"{"references": ["wrong:1"], "config": {"User": "mysql"}}"#,
        );
        // when the folder is read
        let mut found = images(folder.path());
        found.sort_by(|a, b| a.0.cmp(&b.0));
        // then the two that are right are there
        let references: Vec<_> = found.iter().map(|(references, _)| references.join(" ")).collect();
        assert_eq!(references, ["db:1 db:latest", "tool:1"]);
        let expected = Image {
            root: Root::Own(folder.path().join("db/root")),
            entrypoint: vec!["/usr/sbin/db".into()],
            cmd: vec!["--help".into()],
            env: vec![("A".into(), "b=c".into())],
            working_dir: Some("/srv".into()),
            user: Some((999, 998)),
            volumes: vec!["/var/lib/db".into()],
        };
        assert_eq!(found[0].1, expected);
        let programs = Some(folder.path().join("tool/programs"));
        assert_eq!(found[1].1.root, Root::Host { programs });
    }

    #[test]
    fn of_two_descriptions_the_later_comes_last() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a", r#"{"references": ["x:1"], "programs": "new"}"#);
        write(folder.path(), "b", r#"{"references": ["x:1"], "programs": "old"}"#);
        let earlier = SystemTime::now() - std::time::Duration::from_secs(60);
        let old = fs::File::options()
            .append(true)
            .open(folder.path().join("b").join(DESCRIPTION));
        old.unwrap().set_modified(earlier).unwrap();
        let roots: Vec<_> = images(folder.path()).into_iter().map(|(_, image)| image.root).collect();
        let programs = Some(folder.path().join("a/new"));
        assert_eq!(roots.last(), Some(&Root::Host { programs }));
    }
}
