//! Files that a process may read with its own rights, for text that memprof shows to others.
//!
//! A target chooses the names of its source files, and memprof can read more files than the target. So the name alone must
//! not open a file: the process must be allowed to read the file, and to search every directory that leads to it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::find::{about, find_in, root_of};
use super::{About, TargetFile, file_system_at, regular};
use crate::ids::Pid;
use crate::proc_dir;
use crate::procfs::StatusFile;

/// `f_type` of file systems whose contents depend on who reads: procfs and sysfs.
const DEPENDS_ON_READER: [u64; 2] = [0x9fa0, 0x6265_6572];

/// `CAP_DAC_OVERRIDE` and `CAP_DAC_READ_SEARCH`, as bits of `CapEff`.
const READS_EVERYTHING: u64 = 1 << 1 | 1 << 2;

/// Permission bits of the file's owner and of all others: to read a file, and to search a directory.
const READ: u32 = 0o404;
const SEARCH: u32 = 0o101;

impl TargetFile {
    /// The regular file at a path in a process's file tree, or below its working directory, that the process itself may
    /// read. Groups and access control lists give no right here, so a file may be refused that the process could read.
    ///
    /// # Errors
    /// There is no such file, it is not regular, its file system does not answer, or
    /// [`io::ErrorKind::PermissionDenied`]: the process may not read it.
    pub fn permitted(pid: Pid, path: &Path) -> io::Result<TargetFile> {
        let user = User::who_runs(pid)?;
        let root = root_of(pid)?;
        let path = proc_dir::link(pid, "cwd")?.join(path);
        let handle = find_in(&root, &path, 0)?;
        let about = regular(&handle)?;
        let link = link_of(&handle);
        if DEPENDS_ON_READER.contains(&file_system_at(&link)?) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        user.may_reach(&root, &fs::read_link(&link)?, &about)?;
        // Readers open it: they may read files of other users.
        Ok(TargetFile::read_by_readers(handle, about))
    }
}

fn link_of(handle: &File) -> PathBuf {
    format!("/proc/self/fd/{}", handle.as_raw_fd()).into()
}

/// The user whose rights count when a process opens a file.
#[derive(Clone, Copy, Debug)]
struct User {
    id: u32,
    reads_everything: bool,
}

impl User {
    fn who_runs(pid: Pid) -> io::Result<User> {
        let status = StatusFile::for_process(pid)?;
        // Real, effective, saved and file system user.
        let ids = status.field("Uid").unwrap_or_default();
        let id = ids.split_whitespace().nth(3).and_then(|id| id.parse().ok());
        let id = id.ok_or(io::ErrorKind::InvalidData)?;
        // Capabilities in another user namespace, where root has another id, give no right to files of this one.
        let capabilities = status.mask("CapEff").unwrap_or(0);
        Ok(User {
            id,
            reads_everything: id == 0 && capabilities & READS_EVERYTHING != 0,
        })
    }

    /// Checks the file and every directory on its resolved path.
    fn may_reach(self, root: &File, path: &Path, file: &About) -> io::Result<()> {
        // The path of a file outside the tree leads to another file, or to none.
        let same = |found: &About| found.identity() == file.identity();
        if !same(&about(&find_in(root, path, libc::O_NOFOLLOW)?)?) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let directories = path.ancestors().skip(1);
        for directory in directories.filter(|dir| !dir.as_os_str().is_empty()) {
            self.may(
                SEARCH,
                &about(&find_in(root, directory, libc::O_DIRECTORY)?)?,
            )?;
        }
        self.may(READ, file)
    }

    fn may(self, bits: u32, about: &About) -> io::Result<()> {
        const OTHERS: u32 = 0o007;
        let bits = match about.owner() == self.id {
            true => bits & !OTHERS,
            false => bits & OTHERS,
        };
        match self.reads_everything || about.mode() & bits != 0 {
            true => Ok(()),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    /// A process of a user, in `directory`.
    struct Sleeper(Child);

    impl Sleeper {
        fn start(directory: &Path, user: u32) -> Sleeper {
            let mut command = Command::new("sleep");
            command.arg("1000").current_dir(directory);
            Sleeper(command.uid(user).gid(user).spawn().unwrap())
        }

        fn may(&self, path: impl AsRef<Path>) -> bool {
            TargetFile::permitted(Pid(self.0.id()), path.as_ref()).is_ok()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_process_gets_only_what_it_may_read_itself() {
        assert!(
            nix::unistd::geteuid().is_root(),
            "only root can run programs as other users"
        );
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mode(directory.path(), 0o755);
        fs::create_dir(at("private")).unwrap();
        for name in ["open", "closed", "own", "group", "private/open"] {
            fs::write(at(name), "text").unwrap();
            mode(&at(name), 0o644);
        }
        mode(&at("closed"), 0o600);
        mode(&at("private"), 0o700);
        chown(at("own"), Some(1234), None).unwrap();
        mode(&at("own"), 0o400);
        chown(at("group"), None, Some(1234)).unwrap();
        mode(&at("group"), 0o640);
        symlink(at("private/open"), at("link")).unwrap();
        symlink(at("open"), at("fine")).unwrap();
        let other = Sleeper::start(directory.path(), 1234);
        for allowed in ["open", "own", "fine"] {
            assert!(other.may(at(allowed)) && other.may(allowed), "{allowed}");
        }
        // The process could read the file of its group; memprof does not look at groups.
        for refused in ["closed", "group", "private/open", "link", "none", "private"] {
            assert!(!other.may(at(refused)) && !other.may(refused), "{refused}");
        }
        for refused in [
            "/proc/version",
            "/proc/self/maps",
            "/sys/kernel/notes",
            "/dev/null",
        ] {
            assert!(!other.may(refused), "{refused}");
        }
        let own = Sleeper::start(directory.path(), 0);
        for allowed in ["open", "closed", "own", "group", "private/open", "link"] {
            assert!(own.may(at(allowed)), "{allowed}");
        }
        assert!(!own.may("/proc/self/environ"));
        let file = TargetFile::permitted(Pid(own.0.id()), &at("closed")).unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut file.contents(), &mut text).unwrap();
        assert_eq!(text, "text");
    }
}
