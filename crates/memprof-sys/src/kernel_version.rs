//! Linux kernel versions.

use std::fmt;

use crate::procfs::kernel_release;

/// A kernel version, `(major, minor)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// The version of the running kernel; 0.0 if it is unknown.
    pub fn running() -> KernelVersion {
        KernelVersion::parse(&kernel_release()).unwrap_or_default()
    }

    /// Parses the start of a release string such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<KernelVersion> {
        let mut parts = release.trim().split(|c: char| !c.is_ascii_digit());
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        Some(KernelVersion(major, minor))
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_release_strings() {
        let cases = [
            ("6.1.0-18-amd64", Some(KernelVersion(6, 1))),
            ("5.10.0", Some(KernelVersion(5, 10))),
            ("6.18-rc3", Some(KernelVersion(6, 18))),
            ("6.18.44-fc-v509\n", Some(KernelVersion(6, 18))),
            ("weird", None),
            ("", None),
        ];
        for (release, version) in cases {
            assert_eq!(KernelVersion::parse(release), version, "{release:?}");
        }
        assert!(KernelVersion(5, 10) < KernelVersion(6, 1));
        assert!(KernelVersion(5, 9) < KernelVersion(5, 10));
    }
}
