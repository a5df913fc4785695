//! The local cache of debuginfod clients (gdb, perf, `debuginfod-find`): debug files by build id.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

use super::fetch::BuildId;
use crate::elf::Elf;
use crate::modules::open_regular;
use memprof_sys::target_file::TargetFile;

/// The environment variable that names the cache directory.
pub const CACHE_PATH: &str = "DEBUGINFOD_CACHE_PATH";
const NAME: &str = "debuginfod_client";
/// What elfutils used before XDG directories.
const OLD_NAME: &str = ".debuginfod_client_cache";

/// The cache directories of this machine's user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheDirs {
    /// In the order in which they are searched. The first one is where new files go.
    pub dirs: Vec<PathBuf>,
}

impl CacheDirs {
    /// Only this directory.
    pub fn only(dir: &Path) -> CacheDirs {
        CacheDirs {
            dirs: vec![dir.to_owned()],
        }
    }

    /// The directories that elfutils' client would use with this environment, and under `sudo` also those of the user
    /// who called it, which are only read.
    pub fn of_environment() -> CacheDirs {
        let home = |uid: Uid| User::from_uid(uid).ok().flatten().map(|user| user.dir);
        let me = Uid::effective();
        let caller = std::env::var("SUDO_UID").ok();
        let caller = caller.and_then(|uid| uid.parse().ok()).map(Uid::from_raw);
        let own = |dir: &Path| fs::metadata(dir).is_ok_and(|meta| meta.uid() == me.as_raw());
        let mut dirs = directories(
            |name| std::env::var_os(name),
            own,
            home(me),
            caller.filter(|uid| *uid != me).and_then(home),
        );
        dirs.retain(|dir| dir.is_absolute());
        CacheDirs { dirs }
    }

    /// Opens the debug file with this build id.
    pub(super) fn find(&self, id: &BuildId) -> Option<TargetFile> {
        self.dirs.iter().find_map(|dir| {
            let file = open_regular(&file_of(dir, id)).ok()?;
            let same = Elf::read(&file).ok()?.build_id().as_ref() == Some(&id.0);
            same.then_some(file)
        })
    }
}

/// Where a cache directory has the debug file with this build id.
pub fn file_of(dir: &Path, id: &BuildId) -> PathBuf {
    dir.join(id.to_string()).join("debuginfo")
}

/// The cache directories, given the environment, whether a directory is this user's own, this user's home and that of
/// the caller of `sudo`.
fn directories(
    variable: impl Fn(&str) -> Option<OsString>,
    own: impl Fn(&Path) -> bool,
    home: Option<PathBuf>,
    caller: Option<PathBuf>,
) -> Vec<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from);
    let set = |name| path(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(dir) = set(CACHE_PATH) {
        return vec![dir];
    }
    // `sudo` may leave the caller's HOME: root writes nothing there.
    let home = set("HOME").filter(|dir| own(dir)).or(home);
    let xdg = set("XDG_CACHE_HOME").filter(|dir| own(dir));
    let xdg = xdg.or_else(|| home.as_ref().map(|home| home.join(".cache")));
    let mut dirs: Vec<PathBuf> = xdg.map(|dir| dir.join(NAME)).into_iter().collect();
    dirs.extend(home.map(|home| home.join(OLD_NAME)));
    if let Some(caller) = caller {
        dirs.push(caller.join(".cache").join(NAME));
        dirs.push(caller.join(OLD_NAME));
    }
    let mut seen = std::collections::HashSet::new();
    dirs.retain(|dir| seen.insert(dir.clone()));
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(
        variables: &[(&str, &str)],
        own: &[&str],
        home: &str,
        caller: Option<&str>,
    ) -> Vec<String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let own = |dir: &Path| own.iter().any(|o| Path::new(o) == dir);
        let dirs = directories(variable, own, Some(home.into()), caller.map(Into::into));
        dirs.iter().map(|d| d.display().to_string()).collect()
    }

    #[test]
    fn the_directories_are_those_of_other_clients() {
        let usual = [
            "/home/u/.cache/debuginfod_client",
            "/home/u/.debuginfod_client_cache",
        ];
        assert_eq!(
            dirs(&[("HOME", "/home/u")], &["/home/u"], "/root", None),
            usual
        );
        let set = [("HOME", "/home/u"), (CACHE_PATH, "/srv/cache")];
        assert_eq!(dirs(&set, &["/home/u"], "/root", None), ["/srv/cache"]);
        let xdg = [("HOME", "/home/u"), ("XDG_CACHE_HOME", "/home/u/.c")];
        let own = ["/home/u", "/home/u/.c"];
        assert_eq!(
            dirs(&xdg, &own, "/root", None)[0],
            "/home/u/.c/debuginfod_client"
        );
    }

    #[test]
    fn root_under_sudo_writes_into_its_own_home_and_reads_the_callers() {
        let left = [("HOME", "/home/u"), ("XDG_CACHE_HOME", "/home/u/.c")];
        let all = dirs(&left, &["/root"], "/root", Some("/home/u"));
        assert_eq!(
            all,
            [
                "/root/.cache/debuginfod_client",
                "/root/.debuginfod_client_cache",
                "/home/u/.cache/debuginfod_client",
                "/home/u/.debuginfod_client_cache",
            ]
        );
    }
}
