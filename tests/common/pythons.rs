//! The CPythons of this machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The minor versions whose frames are read.
const READ: std::ops::RangeInclusive<u32> = 8..=14;

/// The CPythons of this machine whose frames memprof reads, by their versions. Those in `MEMPROF_TEST_PYTHONS` (paths, with `:`
/// between them) come first: for example of a virtual environment that has packages.
pub fn pythons() -> BTreeMap<String, PathBuf> {
    let mut all = all_pythons();
    all.retain(|version, _| !is_free_threaded(version));
    all
}

/// Whether a version is that of a free-threaded build.
pub fn is_free_threaded(version: &str) -> bool {
    version.ends_with('t')
}

/// The minor version: the second number.
pub fn minor(version: &str) -> u32 {
    let second = version.split('.').nth(1);
    second.and_then(|minor| minor.parse().ok()).unwrap()
}

/// Also the free-threaded builds, whose versions end with a `t`.
pub fn all_pythons() -> BTreeMap<String, PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let chosen = std::env::var_os("MEMPROF_TEST_PYTHONS").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&chosen).collect();
    places.retain(|path| !path.as_os_str().is_empty());
    places.push(PathBuf::from("/usr/bin/python3"));
    for versions in [".pyenv/versions", ".local/share/uv/python"] {
        let versions = std::fs::read_dir(home.join(versions)).into_iter().flatten();
        places.extend(versions.flatten().map(|v| v.path().join("bin/python3")));
    }
    let mut found = BTreeMap::new();
    for path in places {
        let text = "import sys; print(*sys.version_info[:3], sep='.', end=sys.abiflags)";
        let Ok(said) = Command::new(&path).args(["-c", text]).output() else {
            continue;
        };
        let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        let minor = version.split('.').nth(1).and_then(|m| m.parse().ok());
        if said.status.success() && minor.is_some_and(|m: u32| READ.contains(&m)) {
            found.entry(version).or_insert(path);
        }
    }
    found
}
