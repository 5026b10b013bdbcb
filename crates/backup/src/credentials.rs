//! The secrets of the stores, as files with the key names of the old API.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Reason};

/// What the AWS files `credentials` and `config` say for the profile `default`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Aws {
    pub(crate) key_id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
    pub(crate) region: Option<String>,
}

/// One key of the secret, without the white space around it; none when the file is missing or empty.
pub(crate) fn file(folder: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(name)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// One key that must be there.
pub(crate) fn needed(folder: &Path, name: &str) -> Result<String, Error> {
    file(folder, name).ok_or_else(|| {
        Error::new(
            Reason::SecretInvalid,
            format!("the store's secret has no key \"{name}\" with a text in it: add it"),
        )
    })
}

/// Reads both AWS files. `config` may be missing where an endpoint or the environment says enough.
pub(crate) fn aws(folder: &Path) -> Result<Aws, Error> {
    let credentials = needed(folder, "credentials")?;
    let config = file(folder, "config").unwrap_or_default();
    parse_aws(&credentials, &config)
}

fn parse_aws(credentials: &str, config: &str) -> Result<Aws, Error> {
    let keys = profile(credentials);
    let config = profile(config);
    let get = |name: &str| keys.get(name).or_else(|| config.get(name)).cloned();
    let must = |name: &str| {
        get(name).ok_or_else(|| {
            Error::new(
                Reason::SecretInvalid,
                format!("the secret's file \"credentials\" has no {name} in the profile [default]: add it"),
            )
        })
    };
    Ok(Aws {
        key_id: must("aws_access_key_id")?,
        secret: must("aws_secret_access_key")?,
        token: get("aws_session_token").or_else(|| get("aws_security_token")),
        region: get("region"),
    })
}

/// The settings of the profile `default` in an AWS file. Nested settings (indented lines) are of no interest.
fn profile(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut inside = false;
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = bare.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let section = section.trim();
            inside = section == "default" || section.split_whitespace().collect::<Vec<_>>() == ["profile", "default"];
        } else if let Some((name, value)) = bare.split_once('=')
            && inside
        {
            found.insert(name.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    found.retain(|_, value| !value.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_is_read() {
        let credentials =
            "# mine\n[other]\naws_access_key_id = no\n[default]\naws_access_key_id=AK\naws_secret_access_key = s=e/c\n";
        let config = "[profile default]\nregion = eu-central-1\n[profile x]\nregion = no\n";
        let aws = parse_aws(credentials, config).expect("credentials");
        assert_eq!(
            aws,
            Aws {
                key_id: "AK".into(),
                secret: "s=e/c".into(),
                token: None,
                region: Some("eu-central-1".into())
            }
        );
    }

    #[test]
    fn what_is_missing_is_said() {
        let error = parse_aws("[default]\naws_access_key_id=AK\n", "").expect_err("no secret key");
        assert_eq!(error.reason, Reason::SecretInvalid);
        assert!(error.message.contains("aws_secret_access_key"), "{error}");
    }
}
