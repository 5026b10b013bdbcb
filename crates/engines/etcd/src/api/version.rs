//! Versions of etcd: read with or without a leading `v`, ordered as semantic versions.

use std::fmt;
use std::str::FromStr;

/// The oldest minor version that can be run.
pub const OLDEST_MINOR: u64 = 2;
/// The newest minor version that can be run.
pub const NEWEST_MINOR: u64 = 7;

/// A version of etcd, such as `3.6.16`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtcdVersion(semver::Version);

/// Why a text is not a version of etcd that can be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// It is not a version at all.
    #[error("\"{0}\" is not a version of etcd: write it as MAJOR.MINOR.PATCH, for example 3.6.16")]
    Unparsable(String),
    /// It is a version, of which nothing is known.
    #[error("etcd {0} is not supported: choose a version from 3.{OLDEST_MINOR} to 3.{NEWEST_MINOR}")]
    Unsupported(EtcdVersion),
}

impl EtcdVersion {
    /// A version from its three numbers.
    pub fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self(semver::Version::new(major, minor, patch))
    }

    /// The first number; 3 for every version that can be run.
    pub fn major(&self) -> u64 {
        self.0.major
    }

    /// The second number. Upgrades go one minor at a time.
    pub fn minor(&self) -> u64 {
        self.0.minor
    }

    /// The third number.
    pub fn patch(&self) -> u64 {
        self.0.patch
    }

    /// Whether both have the same major and minor version, so that one may replace the other in any direction.
    pub fn same_minor(&self, other: &Self) -> bool {
        self.major() == other.major() && self.minor() == other.minor()
    }

    /// Whether members can join without a vote first (3.4 and later).
    pub fn has_learners(&self) -> bool {
        self.at_least(3, 4, 0)
    }

    /// Whether several learners can be added before the first is promoted: `--max-learners` (3.6 and later).
    pub fn has_max_learners(&self) -> bool {
        self.at_least(3, 6, 0)
    }

    /// Whether `/livez` and `/readyz` are served (3.4.29, 3.5.11 and later of each line).
    pub fn has_livez(&self) -> bool {
        match self.minor() {
            4 => self.at_least(3, 4, 29),
            _ => self.at_least(3, 5, 11),
        }
    }

    /// Whether the version is at least the given one.
    pub fn at_least(&self, major: u64, minor: u64, patch: u64) -> bool {
        self.0 >= semver::Version::new(major, minor, patch)
    }

    /// The tag of its image: `v3.6.16`.
    pub fn tag(&self) -> String {
        format!("v{self}")
    }

    /// Reads a version and refuses those of which nothing is known.
    pub fn parse_supported(text: &str) -> Result<Self, VersionError> {
        let version: Self = text.parse()?;
        if version.major() == 3 && (OLDEST_MINOR..=NEWEST_MINOR).contains(&version.minor()) {
            Ok(version)
        } else {
            Err(VersionError::Unsupported(version))
        }
    }
}

impl FromStr for EtcdVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.strip_prefix('v').unwrap_or(text);
        semver::Version::parse(bare)
            .map(Self)
            .map_err(|_| VersionError::Unparsable(text.to_owned()))
    }
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> EtcdVersion {
        text.parse().expect(text)
    }

    #[test]
    fn a_leading_v_is_accepted_and_not_kept() {
        assert_eq!(version("v3.5.35").to_string(), "3.5.35");
        assert_eq!(version("3.5.35").tag(), "v3.5.35");
    }

    #[test]
    fn order_is_by_number_and_pre_releases_come_first() {
        assert!(version("3.5.9") < version("3.5.35"));
        assert!(version("3.6.0-rc.1") < version("3.6.0"));
    }

    #[test]
    fn what_is_not_a_version_is_refused_with_words() {
        for text in ["", "latest", "3.5", "vv3.5.1", "3.05.1", "3.5.1 "] {
            let error = text.parse::<EtcdVersion>().expect_err(text);
            assert!(error.to_string().contains("MAJOR.MINOR.PATCH"), "{error}");
        }
        assert!(EtcdVersion::parse_supported("3.8.0").is_err());
        assert!(EtcdVersion::parse_supported("2.3.8").is_err());
        assert!(EtcdVersion::parse_supported("v3.2.13").is_ok());
    }

    #[test]
    fn abilities_follow_the_version() {
        assert!(!version("3.3.27").has_learners() && version("3.4.23").has_learners());
        assert!(!version("3.5.35").has_max_learners() && version("3.6.16").has_max_learners());
        assert!(!version("3.4.23").has_livez() && version("3.4.29").has_livez());
        assert!(!version("3.5.10").has_livez() && version("3.7.3").has_livez());
    }
}
