//! Which files a process that has just begun will run: its program, and the libraries that the dynamic
//! loader will map.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::elf::Elf;
use crate::event::Pid;
use crate::modules::open_regular;

/// How long the loader may take to say what it will map.
const LISTING: Duration = Duration::from_secs(5);
/// Most bytes of what it says.
const MAX_LISTING: u64 = 1 << 20;

/// What a process will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file whose code runs: of a script, its interpreter's.
    pub path: PathBuf,
    /// What the loader will map beside it, the loader included.
    pub libraries: Vec<PathBuf>,
}

impl Program {
    /// What a process that has just begun is about to run; `None` for one that is gone.
    pub fn of(pid: Pid) -> Option<Program> {
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let path = fs::read_link(&exe).ok()?;
        // Where its path leads to another file in memprof's own root, or to none, its libraries come as it runs.
        let same = is_same(&exe, &path);
        let libraries = if same { libraries(&path) } else { Vec::new() };
        let path = if same { path } else { exe };
        Some(Program { path, libraries })
    }
}

fn is_same(a: &Path, b: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    identity(a).is_some() && identity(a) == identity(b)
}

/// The libraries of a program as its own loader names them: it is started as the kernel would start it, and told to list what it maps and to run nothing. None where it is no loader that is known to.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let loader = open_regular(program)
        .ok()
        .and_then(|file| Elf::read(&file).ok()?.interpreter());
    let Some(loader) = loader.filter(|l| lists_libraries(l)) else {
        return Vec::new();
    };
    let child = Command::new(&loader)
        .arg("--list")
        .arg(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut libraries = child.map(|c| parse(&output(c))).unwrap_or_default();
    libraries.push(loader);
    libraries
}

/// The loaders of glibc and musl.
fn lists_libraries(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-linux") || name.starts_with(b"ld-musl")
}

/// What a child says, which is ended when it takes too long.
fn output(mut child: Child) -> Vec<u8> {
    let (said, hears) = channel();
    if let Some(out) = child.stdout.take() {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = out.take(MAX_LISTING).read_to_end(&mut bytes);
            let _ = said.send(bytes);
        });
    }
    let bytes = hears.recv_timeout(LISTING).unwrap_or_default();
    let _ = child.kill();
    let _ = child.wait();
    bytes
}

/// Lines are `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`.
fn parse(listing: &[u8]) -> Vec<PathBuf> {
    let paths = listing.split(|b| *b == b'\n').filter_map(|line| {
        let line = line.trim_ascii();
        let after = line.windows(4).position(|w| w == b" => ");
        let path = &line[after.map_or(0, |at| at + 4)..];
        let end = path.windows(4).rposition(|w| w == b" (0x")?;
        let path = &path[..end];
        path.starts_with(b"/")
            .then(|| PathBuf::from(OsString::from_vec(path.to_vec())))
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_program_are_those_that_it_maps() {
        let own = Program::of(Pid(std::process::id())).expect("this one");
        assert!(own.path.is_absolute());
        let names: Vec<_> = own
            .libraries
            .iter()
            .filter_map(|p| p.file_name()?.to_str())
            .collect();
        assert!(names.iter().any(|n| n.starts_with("libc.")), "{names:?}");
        assert!(names.iter().any(|n| n.starts_with("ld-")), "{names:?}");
        assert_eq!(Program::of(Pid(u32::MAX)), None);
    }

    #[test]
    fn listings_of_both_loaders_are_read() {
        let listing = b"\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibc.so.6 => /lib/x y/libc.so.6 (0x00007f)\n\
            \tlibno.so => not found\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let want = ["/lib/x y/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse(listing), want);
        assert_eq!(parse(b"statically linked"), Vec::<PathBuf>::new());
    }
}
