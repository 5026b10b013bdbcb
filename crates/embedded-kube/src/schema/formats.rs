//! The string formats that Kubernetes checks in custom resources. Other formats are ignored, as in Kubernetes.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use base64::Engine;
use regex::Regex;

/// Whether Kubernetes knows this string format. Dashes are ignored: `date-time` is `datetime`.
pub(crate) fn known(format: &str) -> bool {
    check(format).is_some()
}

/// Whether the text matches the format; unknown formats accept everything.
pub(crate) fn accepts(format: &str, text: &str) -> bool {
    check(format).is_none_or(|check| check(text))
}

fn check(format: &str) -> Option<fn(&str) -> bool> {
    Some(match format.replace('-', "").as_str() {
        "uri" => |t| t.starts_with('/') || (t.contains(':') && t.parse::<http::Uri>().is_ok()),
        "email" => |t| matches(r"^[^\s@<>]+@[^\s@<>]+$", t),
        "hostname" => |t| {
            t.len() <= 255
                && matches(
                    r"^([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.?$",
                    t,
                )
        },
        "ipv4" => |t| t.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => |t| t.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr,
        "mac" => |t| {
            matches(
                r"^([0-9a-fA-F]{2}[:-]){5}([0-9a-fA-F]{2})$|^([0-9a-fA-F]{2}[:-]){7}([0-9a-fA-F]{2})$|^([0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}$",
                t,
            )
        },
        "uuid" => |t| {
            matches(
                r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
                t,
            )
        },
        "uuid3" => |t| {
            matches(
                r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
                t,
            )
        },
        "uuid4" => |t| {
            matches(
                r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
                t,
            )
        },
        "uuid5" => |t| {
            matches(
                r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
                t,
            )
        },
        "byte" => |t| !t.is_empty() && base64::engine::general_purpose::STANDARD.decode(t).is_ok(),
        "date" => |t| t.len() == 10 && t.parse::<jiff::civil::Date>().is_ok(),
        "datetime" => |t| t.parse::<jiff::Timestamp>().is_ok(),
        "duration" => |t| {
            matches(
                r"^[-+]?(\d+(\.\d*)?|\.\d+)\s*(ns|us|µs|μs|ms|s|m|h|d|w)((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))*$|^0$|^\d+\s*(nano|micro|milli)?(second|sec)s?$|^\d+\s*(minute|min|hour|hr|day|week|wk)s?$",
                t,
            )
        },
        "hexcolor" => |t| matches(r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$", t),
        "ssn" => |t| matches(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$", t),
        "bsonobjectid" => |t| matches(r"^[0-9a-fA-F]{24}$", t),
        "k8sshortname" => |t| t.len() <= 63 && matches(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", t),
        "k8slongname" => {
            |t| t.len() <= 253 && matches(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", t)
        }
        "password" | "isbn" | "isbn10" | "isbn13" | "creditcard" | "rgbcolor" => |_| true,
        _ => return None,
    })
}

fn cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let Ok(length) = length.parse::<u8>() else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && length <= 32) || (address.parse::<Ipv6Addr>().is_ok() && length <= 128)
}

/// The expressions are constants of this file, so each is compiled once and kept.
fn matches(pattern: &'static str, text: &str) -> bool {
    use std::collections::HashMap;
    use std::sync::Mutex;
    static COMPILED: OnceLock<Mutex<HashMap<&'static str, Option<Regex>>>> = OnceLock::new();
    let compiled = COMPILED.get_or_init(Mutex::default);
    let regex = match compiled.lock() {
        Ok(mut compiled) => compiled
            .entry(pattern)
            .or_insert_with(|| Regex::new(pattern).ok())
            .clone(),
        Err(_) => Regex::new(pattern).ok(),
    };
    regex.is_none_or(|regex| regex.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_accepts_and_rejects() {
        for (format, good, bad) in [
            ("date-time", "2026-11-15T11:00:00Z", "yesterday"),
            ("datetime", "2026-11-15T11:00:00.123+01:00", "2026-11-15"),
            ("date", "2026-11-15", "15.11.2026"),
            ("ipv4", "10.0.0.1", "10.0.0"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
            ("byte", "aGVsbG8=", "%%%"),
            ("hostname", "a.example.com", "-a"),
            ("uri", "https://example.com/x", "example"),
            ("email", "a@b.c", "a"),
            ("duration", "1h30m", "soon"),
            ("mac", "00:11:22:33:44:55", "00:11"),
            ("k8s-short-name", "abc", "Abc"),
            ("k8s-long-name", "abc.d", "abc..d"),
        ] {
            assert!(accepts(format, good), "{format} {good}");
            assert!(!accepts(format, bad), "{format} {bad}");
        }
        assert!(accepts("no-such-format", "x") && !known("no-such-format"));
    }
}
