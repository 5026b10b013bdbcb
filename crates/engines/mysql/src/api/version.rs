//! Versions of MySQL, and the steps between them that are supported.

use std::fmt;
use std::str::FromStr;

/// A version of MySQL: major, minor, patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MySQLVersion {
    /// As 9 in 9.7.4.
    pub major: u32,
    /// As 7 in 9.7.4.
    pub minor: u32,
    /// As 4 in 9.7.4.
    pub patch: u32,
}

/// Why a text names no version that can be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// It is no version.
    #[error("\"{0}\" is not a version: write it as 9.7.4")]
    Malformed(String),
    /// It is older than what Stateward can run.
    #[error("MySQL {0} is too old: Stateward runs 8.4 and later")]
    TooOld(String),
}

/// The series that are maintained for years; from one of them the next step is the next one.
const LONG_TERM: [(u32, u32); 2] = [(8, 4), (9, 7)];

impl MySQLVersion {
    /// The series, which decides what can replicate from what and what data can be opened.
    pub fn series(self) -> (u32, u32) {
        (self.major, self.minor)
    }

    /// Reads a version that Stateward can run.
    pub fn supported(text: &str) -> Result<Self, VersionError> {
        let version = Self::from_str(text)?;
        if version.series() < LONG_TERM[0] {
            return Err(VersionError::TooOld(text.to_owned()));
        }
        Ok(version)
    }

    /// Why data of this version cannot be opened by another; MySQL's rule: within a series any later patch, from a long-term
    /// series to the next one or to any innovation in between, from an innovation up to the next long-term series.
    pub fn check_step(self, to: Self) -> Result<(), String> {
        if to < self {
            return Err(format!(
                "the cluster runs {self}: MySQL cannot open the data of a later version. Set version to {self} or later, or \
                 restore a backup into a new cluster"
            ));
        }
        let next = LONG_TERM.into_iter().find(|series| *series > self.series());
        match next {
            Some(next) if to.series() > next => Err(format!(
                "from {self} MySQL must first be brought to {}.{}: set version to a release of it",
                next.0, next.1
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for MySQLVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for MySQLVersion {
    type Err = VersionError;

    /// Also reads what a server says of itself, as `9.7.4-debian`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let malformed = || VersionError::Malformed(text.to_owned());
        let plain = text.split(['-', '+', '~']).next().unwrap_or_default();
        let mut parts = plain.trim().split('.').map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten()
        });
        let mut next = || parts.next().flatten().ok_or_else(malformed);
        let version = Self {
            major: next()?,
            minor: next()?,
            patch: next()?,
        };
        if parts.next().is_some() {
            return Err(malformed());
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> MySQLVersion {
        text.parse().expect(text)
    }

    #[test]
    fn versions_are_read_as_servers_say_them() {
        assert_eq!(version("9.7.4").to_string(), "9.7.4");
        assert_eq!(version("9.7.4-3+deb13u1"), version("9.7.4"));
        for text in ["", "9.7", "9.7.x", "9.7.4.1", "v9.7.4"] {
            assert!(MySQLVersion::from_str(text).is_err(), "{text}");
        }
        assert!(MySQLVersion::supported("8.0.40").is_err() && MySQLVersion::supported("8.4.0").is_ok());
    }

    #[test]
    fn data_goes_forward_along_supported_steps() {
        for (from, to, fine) in [
            ("9.7.4", "9.7.4", true),
            ("9.7.4", "9.7.9", true),
            ("9.7.4", "9.7.3", false),
            ("8.4.1", "9.7.4", true),
            ("8.4.1", "9.3.0", true),
            ("8.4.1", "10.1.0", false),
            ("9.7.4", "10.1.0", true),
            ("9.3.0", "9.5.0", true),
            ("9.3.0", "8.4.9", false),
        ] {
            assert_eq!(version(from).check_step(version(to)).is_ok(), fine, "{from} to {to}");
        }
    }
}
