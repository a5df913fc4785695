//! Which files a command will run: its program, the interpreter of a script, and the libraries that the
//! dynamic loader will map.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use crate::elf::Elf;
use crate::modules::open_regular;

/// Where `execvp` looks without a `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Scripts whose interpreter is a script: as many as the kernel follows.
const MAX_SCRIPTS: usize = 4;
/// Bytes of a script's first line that the kernel reads.
const FIRST_LINE: usize = 256;
/// How long the loader may take to say what it will map.
const LISTING: Duration = Duration::from_secs(5);
/// Most bytes of what it says.
const MAX_LISTING: u64 = 1 << 20;

/// What a command will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file whose code runs: of a script, its interpreter's.
    pub path: PathBuf,
    /// What the loader will map beside it, the loader included.
    pub libraries: Vec<PathBuf>,
}

impl Program {
    /// What a command's first word will run; `None` where nothing is found, which `exec` then says better.
    pub fn find(name: &str) -> Option<Program> {
        let mut path = search(OsStr::new(name))?;
        for _ in 0..MAX_SCRIPTS {
            match interpreter_of_script(&path) {
                Some(interpreter) => path = interpreter,
                None => break,
            }
        }
        let libraries = libraries(&path);
        Some(Program { path, libraries })
    }
}

/// As `execvp` finds it.
fn search(name: &OsStr) -> Option<PathBuf> {
    let runs = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(runs);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    env::split_paths(&path).map(|dir| dir.join(name)).find(runs)
}

/// The program that a script's first line names; of `/usr/bin/env NAME`, the one that `env` will run.
fn interpreter_of_script(path: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    let file = open_regular(path).ok()?;
    file.take(FIRST_LINE as u64).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let mut words = line
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty());
    let interpreter = PathBuf::from(OsStr::from_bytes(words.next()?));
    if interpreter.file_name() == Some(OsStr::new("env")) {
        let name = words.find(|w| !w.starts_with(b"-") && !w.contains(&b'='))?;
        return search(OsStr::from_bytes(name));
    }
    Some(interpreter)
}

/// The libraries of a program as its own loader names them: it is started as the program's start would
/// start it, and told to list what it maps and to run nothing. None where it is no loader that is known to.
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
        let sleep = Program::find("sleep").expect("on the path");
        assert!(sleep.path.is_absolute());
        let names: Vec<_> = sleep
            .libraries
            .iter()
            .filter_map(|p| p.file_name()?.to_str())
            .collect();
        assert!(names.iter().any(|n| n.starts_with("libc.")), "{names:?}");
        assert!(names.iter().any(|n| n.starts_with("ld-")), "{names:?}");
    }

    #[test]
    fn a_scripts_program_is_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, mode).unwrap();
            path
        };
        let program = |path: &Path| Program::find(path.to_str().unwrap()).map(|p| p.path);
        let plain = script("a", "#! /bin/sh -e\necho\n");
        assert_eq!(program(&plain), Some("/bin/sh".into()));
        let env = script("b", "#!/usr/bin/env -S A=1 sleep 1\n");
        assert_eq!(program(&env), search(OsStr::new("sleep")));
        assert_eq!(program(Path::new("/no/such/program")), None);
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
