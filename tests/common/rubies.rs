//! The Rubies of this machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The versions whose frames are read.
const READ: [&str; 4] = ["3.1.", "3.2.", "3.3.", "3.4."];

/// The Rubies of this machine that memprof reads, by their versions.
pub fn rubies() -> BTreeMap<String, PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let mut places = vec![PathBuf::from("/usr/bin/ruby")];
    for versions in [".rbenv/versions", ".rubies"] {
        let versions = std::fs::read_dir(home.join(versions)).into_iter().flatten();
        places.extend(versions.flatten().map(|v| v.path().join("bin/ruby")));
    }
    let mut found = BTreeMap::new();
    for path in places {
        let text = "print RUBY_ENGINE, ' ', RUBY_VERSION";
        let Ok(said) = Command::new(&path).args(["-e", text]).output() else {
            continue;
        };
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let version = said.strip_prefix("ruby ").unwrap_or_default();
        if READ.iter().any(|read| version.starts_with(read)) {
            found.entry(version.to_owned()).or_insert(path);
        }
    }
    found
}
