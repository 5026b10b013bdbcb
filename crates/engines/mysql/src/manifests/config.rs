//! my.cnf, in two parts. What running servers get too is in the ConfigMap, so that a restarted server has it from the start.
//! What only a restart changes is in the pod, so that a server that restarts by accident does not pick up what the members before
//! it have not tried. What Stateward owns comes after both, as arguments.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::ConfigMap;

use crate::api::config::is_static;
use crate::intent::{Intent, Tls};
use crate::{layout, names};

/// The ConfigMap.
pub fn config_map(intent: &Intent) -> ConfigMap {
    // A name that this MySQL does not know is reported when it is set in running servers; it must not keep one from starting.
    let lines = running(intent)
        .into_iter()
        .map(|(name, value)| (format!("loose_{name}"), value));
    ConfigMap {
        metadata: super::metadata(intent, names::config_map(&intent.name)),
        data: Some(BTreeMap::from([(layout::CONFIG_KEY.to_owned(), my_cnf(lines))])),
        ..ConfigMap::default()
    }
}

/// The variables of every member that are set without a restart.
pub fn running(intent: &Intent) -> BTreeMap<String, String> {
    let config = intent.config.all.iter();
    let mut variables: BTreeMap<String, String> = config
        .filter(|(name, _)| !is_static(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Tls::Auto(tls) = &intent.tls
        && tls.require_clients
    {
        variables.insert("require_secure_transport".into(), "ON".into());
    }
    variables
}

/// The part that a pod is made with.
pub(super) fn read_at_start(intent: &Intent) -> String {
    let defaults = [("skip_name_resolve", "ON"), ("secure_file_priv", "NULL")];
    let mut variables: BTreeMap<&str, String> = defaults.map(|(name, value)| (name, value.to_owned())).into();
    let config = intent.config.all.iter();
    variables.extend(
        config
            .filter(|(name, _)| is_static(name))
            .map(|(name, value)| (name.as_str(), value.clone())),
    );
    let file = |key| format!("{}/{key}", layout::TLS);
    variables.extend(match &intent.tls {
        Tls::Auto(_) => vec![
            ("ssl_ca", file(layout::TLS_CA)),
            ("ssl_cert", file(layout::TLS_CERTIFICATE)),
            ("ssl_key", file(layout::TLS_KEY)),
        ],
        // No version is no TLS.
        Tls::Off => vec![("tls_version", String::new()), ("auto_generate_certs", "OFF".into())],
    });
    my_cnf(variables.into_iter().map(|(name, value)| (name.to_owned(), value)))
}

fn my_cnf(lines: impl Iterator<Item = (String, String)>) -> String {
    let mut text = String::from("[mysqld]\n");
    for (name, value) in lines {
        // Writing to a String does not fail.
        let _written = writeln!(text, "{name} = {}", quoted(&value));
    }
    text
}

/// A value as my.cnf has it: in quotes, in which '#' begins no comment.
fn quoted(value: &str) -> String {
    let mut quoted = String::from("\"");
    for character in value.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_one_value() {
        let lines = [("init_connect", "SET @a = \"#\"\nuser=root"), ("a", r"\n")];
        let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(
            my_cnf(lines.into_iter()),
            "[mysqld]\ninit_connect = \"SET @a = \\\"#\\\"\\nuser=root\"\na = \"\\\\n\"\n"
        );
    }
}
