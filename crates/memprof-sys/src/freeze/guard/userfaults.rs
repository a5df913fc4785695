//! Processes that handle page faults themselves (`userfaultfd`) and want to hear of each fork: the call that makes a child returns
//! once a reader has heard of it. A reader in the process itself is stopped then.

use std::fs;
use std::path::Path;

use crate::ids::Pid;
use crate::proc_dir;

/// `UFFD_FEATURE_EVENT_FORK`.
const HEARS_FORKS: u64 = 1 << 1;

/// Checks that no thread of a process waits for word of a child.
///
/// # Errors
/// One may.
pub(super) fn check(pid: Pid) -> Result<(), String> {
    let files = proc_dir::with(pid, |dir| fs::read_dir(format!("{dir}/fd")));
    let files = files.map_err(|e| format!("its open files cannot be listed: {e}"))?;
    for file in files.flatten() {
        let leads = fs::read_link(file.path());
        if !leads.is_ok_and(|leads| leads == Path::new("anon_inode:[userfaultfd]")) {
            continue;
        }
        let number = file.file_name();
        let info = format!("fdinfo/{}", number.display());
        let info = proc_dir::text(pid, &info).unwrap_or_default();
        if features(&info).is_none_or(|features| features & HEARS_FORKS != 0) {
            return Err("it handles its page faults itself (userfaultfd) and would have to handle the fork, too".to_owned());
        }
    }
    Ok(())
}

/// The features in what the kernel says of such a file.
fn features(info: &str) -> Option<u64> {
    let api = info.lines().find_map(|line| line.strip_prefix("API:"))?;
    let features = api.trim().split(':').nth(1)?;
    u64::from_str_radix(features, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_the_second_number() {
        let info = "pos:\t0\npending:\t0\ntotal:\t0\nAPI:\taa:80000002:1ff\n";
        assert_eq!(features(info), Some(0x8000_0002));
        assert_eq!(features("API:\taa"), None);
    }
}
