//! Finds the name under which a process runs its executable.
//!
//! The kernel reports one path of a file: the target of a symbolic link, or whichever hard link was used first. A program with
//! several names (`redis-server` is a link to `redis-check-rdb`) is therefore looked up under the path that started it.
//!
//! The path is read from the process's own memory, so it is only a claim. It counts if it leads, in the process's own file tree, to
//! the same file by device and inode. Reads are bounded, and the file is not opened for reading.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::ids::Pid;
use crate::procfs::Auxv;
use crate::target_file::{about, about_path, find_in, root_of};
use crate::{mmap_lock, proc_dir};

/// Maximum length of a path, and maximum number of bytes read of each file.
const MAX_TEXT: usize = 4096;
/// Maximum length of a file name on Linux, in bytes.
const MAX_NAME: usize = 255;

/// The name under which a process runs its executable; `None` unless it says more than the kernel's name of the file.
pub(crate) fn runs_as(pid: Pid) -> Option<String> {
    let known = proc_dir::link(pid, "exe").ok()?;
    let name = name_of(pid, executable(pid)?, &known)?;
    says_more(&name, &base_name(&known)).then_some(name)
}

/// Device and inode number of a process's executable, as `stat` reports them; `None` if the process has ended.
pub fn executable(pid: Pid) -> Option<(u64, u64)> {
    let exe = proc_dir::with(pid, |dir| about_path(format!("{dir}/exe"))).ok()?;
    Some(exe.identity())
}

/// The verified base name under which a process runs `executable`, a file given by device and inode number. `known` is the kernel's
/// path of that file. `None` if the process has ended, its mmap lock is held, or no name is verified.
pub fn name_of(pid: Pid, executable: (u64, u64), known: &Path) -> Option<String> {
    if mmap_lock::is_held(pid) {
        return None;
    }
    let named = [started_as(pid), first_word(pid)].into_iter().flatten();
    let paths = named.flat_map(|path| {
        // A name without a directory was found in some directory of PATH, usually in that of the file.
        let beside = known
            .parent()
            .filter(|_| !path.as_os_str().as_bytes().contains(&b'/'));
        let beside = beside.map(|directory| directory.join(&path));
        [Some(path), beside].into_iter().flatten()
    });
    let mut names = paths.filter_map(|path| {
        let name = printable_name(&path)?;
        (identity(pid, &path)? == executable).then_some(name)
    });
    names.next()
}

/// Whether a name says more than the kernel's name: `python3` says less than `python3.13`.
pub fn says_more(name: &str, kernels: &str) -> bool {
    !kernels.starts_with(name)
}

/// The path passed to `execve`, which lies on the process's stack.
fn started_as(pid: Pid) -> Option<PathBuf> {
    let address = Auxv::for_process(pid).ok()?.get(libc::AT_EXECFN)?;
    let mut text = [0; MAX_TEXT];
    let memory = proc_dir::open(pid, "mem").ok()?;
    let read = memory.read_at(&mut text, address).ok()?;
    first(&text[..read])
}

/// The first argument, usually the program's name.
fn first_word(pid: Pid) -> Option<PathBuf> {
    let mut text = Vec::new();
    let file = proc_dir::open(pid, "cmdline").ok()?;
    file.take(MAX_TEXT as u64).read_to_end(&mut text).ok()?;
    first(&text)
}

/// The text before the first NUL; `None` without a NUL or if the text is empty.
fn first(text: &[u8]) -> Option<PathBuf> {
    let end = text.iter().position(|byte| *byte == 0)?;
    (end > 0).then(|| PathBuf::from(OsStr::from_bytes(&text[..end])))
}

fn printable_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let printable = name.len() <= MAX_NAME && !name.chars().any(char::is_control);
    printable.then(|| name.to_owned())
}

/// Device and inode number of the file at a path in a process's file tree. A relative path starts in the process's working
/// directory. The file is opened only with `O_PATH`, and links lead neither out of the tree nor through `/proc/PID/fd`.
fn identity(pid: Pid, path: &Path) -> Option<(u64, u64)> {
    let root = root_of(pid).ok()?;
    let path = match path.is_absolute() {
        true => path.to_owned(),
        false => proc_dir::link(pid, "cwd").ok()?.join(path),
    };
    let file = find_in(&root, &path, 0).ok()?;
    Some(about(&file).ok()?.identity())
}

/// The last component of a path, as text.
pub fn base_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::programs::{Sleeper, copy_program};

    #[test]
    fn links_are_names_and_claims_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let file = dir.join("check-rdb");
        copy_program("/bin/sleep", &file);
        fs::hard_link(&file, dir.join("hard")).unwrap();
        symlink("check-rdb", dir.join("server")).unwrap();
        symlink(&file, dir.join("absolute")).unwrap();
        copy_program("/bin/sleep", dir.join("another"));
        let name = |program: &Path, word: &str| {
            let sleeper = Sleeper::start(program, word, dir);
            let pid = Pid(sleeper.pid());
            let known = proc_dir::link(pid, "exe").unwrap();
            name_of(pid, executable(pid).unwrap(), &known)
        };
        for link in ["check-rdb", "hard", "server", "absolute"] {
            assert_eq!(name(&dir.join(link), "x").as_deref(), Some(link));
        }
        assert_eq!(name(Path::new("./server"), "x").as_deref(), Some("server"));
        // A path that the kernel followed through another process's descriptor leads nowhere, so the first argument is used.
        let through = |word: &str| {
            let held = File::open(&file).unwrap();
            use std::os::fd::AsRawFd;
            let link = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
            name(Path::new(&link), word)
        };
        let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
        assert_eq!(through(&path("server")).as_deref(), Some("server"));
        assert_eq!(through("hard").as_deref(), Some("hard"));
        for claim in [&*path("another"), "another", "/bin/sleep", "", "..", "/"] {
            assert_eq!(through(claim), None, "{claim:?}");
        }
        fs::hard_link(&file, dir.join("two\nlines")).unwrap();
        assert_eq!(through(&path("two\nlines")), None);
        assert_eq!(name_of(Pid(u32::MAX >> 1), (0, 0), &file), None);
    }

    #[test]
    fn a_version_says_more_than_none() {
        assert!(says_more("redis-server", "redis-check-rdb"));
        assert!(!says_more("python3", "python3.13") && !says_more("sleep", "sleep"));
    }

    #[test]
    fn texts_end_at_the_first_nul() {
        assert_eq!(first(b"/bin/x\0y\0"), Some(PathBuf::from("/bin/x")));
        assert_eq!(
            (first(b"/bin/x"), first(b"\0x"), first(b"")),
            (None, None, None)
        );
    }
}
