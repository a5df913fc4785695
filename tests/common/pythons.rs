//! The CPythons of this machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The minor versions whose frames are read.
const READ: std::ops::RangeInclusive<u32> = 8..=14;

/// The CPythons of this machine that memprof reads, by their versions. Those in `MEMPROF_TEST_PYTHONS` (paths, with `:` between
/// them) come first: for example of a virtual environment that has packages.
pub fn pythons() -> BTreeMap<String, PathBuf> {
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
        let text = "import sys; print(*sys.version_info[:3], sep='.')";
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
