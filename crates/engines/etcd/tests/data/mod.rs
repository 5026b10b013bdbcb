//! Reads the manifests and cases that the tests share, those of stateward-etcd-driver too: paths are relative to either.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// One entry of `tests/cases/*.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    #[serde(deserialize_with = "expect")]
    pub(crate) expect: Expect,
    #[serde(default)]
    pub(crate) before: Option<Value>,
    pub(crate) apply: Value,
}

/// What must come of a case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Ok,
    /// A part of the message.
    Refused(String),
}

impl Case {
    pub(crate) fn refusal(&self) -> Option<&str> {
        match &self.expect {
            Expect::Ok => None,
            Expect::Refused(part) => Some(part),
        }
    }
}

fn expect<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Expect, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(if text == "ok" {
        Expect::Ok
    } else {
        Expect::Refused(text)
    })
}

fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(folder);
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// All cases.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for file in yaml_files("../etcd/tests/cases") {
        let entries: Vec<Case> =
            serde_yaml_ng::from_str(&read(&file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        cases.extend(entries);
    }
    cases
}

/// Every document in the fixtures and in `examples/` that is of a kind here, with the name of its file.
pub(crate) fn manifests() -> Vec<(String, Value)> {
    let mut manifests = Vec::new();
    for file in yaml_files("../etcd/tests/fixtures")
        .into_iter()
        .chain(yaml_files("../../../examples"))
    {
        for document in serde_yaml_ng::Deserializer::from_str(&read(&file)) {
            let value = Value::deserialize(document).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            if value["apiVersion"] == format!("{}/{}", stateward_etcd::api::GROUP, stateward_etcd::api::VERSION) {
                manifests.push((
                    file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                    value,
                ));
            }
        }
    }
    manifests
}
