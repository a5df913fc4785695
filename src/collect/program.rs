//! The files that a newly started process will run: its program, and the libraries that the dynamic loader will
//! map, found by the loader's rules.
//!
//! A missed library costs little: its unwind table is ready a moment after it is first mapped.

use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRTAB};

use super::library_cache;
use memprof_code::elf::Elf;
use memprof_code::modules::open_regular;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::target_file::{self, About, about, about_path};

/// Directories that loaders search last.
const DIRECTORIES: [&str; 5] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"];
/// Maximum number of libraries per program; no usual program has more.
const MAX_LIBRARIES: usize = 1000;

/// The files that a process will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file whose code runs; for a script, its interpreter.
    pub path: PathBuf,
    /// The libraries that the loader will map, and the loader itself.
    pub libraries: Vec<PathBuf>,
}

impl Program {
    /// The files that a newly started process will run; `None` if it is gone.
    pub fn for_process(pid: Pid) -> Option<Program> {
        let exe = PathBuf::from(proc_dir::path(pid, "exe"));
        let path = fs::read_link(&exe).ok()?;
        // If its path names another file in memprof's own root, or no file, its libraries are not searched in advance.
        if is_same(&exe, &path) {
            let libraries = libraries(&path, &Environment::for_process(pid));
            return Some(Program { path, libraries });
        }
        Some(Program {
            path: exe,
            libraries: Vec::new(),
        })
    }
}

fn is_same(exe: &Path, path: &Path) -> bool {
    let identity = |about: About| about.identity();
    let at_path = looked_at(path).map(identity);
    at_path.is_some() && at_path == about_path(exe).ok().map(identity)
}

fn looked_at(path: &Path) -> Option<About> {
    about(&target_file::find(path).ok()?).ok()
}

fn is_file(path: &Path) -> bool {
    looked_at(path).is_some_and(|about| about.is_file())
}

/// The variables of a process's environment that the loader reads.
#[derive(Default)]
struct Environment {
    library_path: OsString,
    preload: OsString,
}

impl Environment {
    fn for_process(pid: Pid) -> Environment {
        let text = proc_dir::read(pid, "environ").unwrap_or_default();
        let variables = || text.split(|b| *b == 0);
        let value = |name: &[u8]| {
            let value = variables().find_map(|v| v.strip_prefix(name)?.strip_prefix(b"="));
            OsStr::from_bytes(value.unwrap_or_default()).to_owned()
        };
        Environment {
            library_path: value(b"LD_LIBRARY_PATH"),
            preload: value(b"LD_PRELOAD"),
        }
    }
}

/// The libraries that one file needs.
#[derive(Default)]
struct Needs {
    loader: Option<PathBuf>,
    names: Vec<OsString>,
    /// Directories that the file adds to the search.
    directories: Vec<PathBuf>,
}

impl Needs {
    fn read(path: &Path) -> Option<Needs> {
        let file = open_regular(path).ok()?;
        let elf = Elf::read(&file).ok()?;
        let dynamic = elf.dynamic();
        let value = |tag| dynamic.iter().find(|(t, _)| *t == tag).map(|(_, v)| *v);
        let strings = value(DT_STRTAB);
        let text = |at: u64| elf.text_at(strings?.checked_add(at)?);
        let needed = dynamic.iter().filter(|(tag, _)| *tag == DT_NEEDED);
        let directories = value(DT_RUNPATH).or(value(DT_RPATH)).and_then(text);
        Some(Needs {
            loader: elf.interpreter(),
            names: needed.filter_map(|(_, at)| text(*at)).collect(),
            directories: directories.map_or_else(Vec::new, |list| split(&list, path)),
        })
    }
}

/// The directories in a list; `$ORIGIN` is the directory of the file.
fn split(list: &OsStr, file: &Path) -> Vec<PathBuf> {
    let origin = file.parent().unwrap_or(Path::new("/"));
    let directories = list.as_bytes().split(|b| *b == b':');
    let expand = |directory: &[u8]| {
        for name in [&b"$ORIGIN"[..], b"${ORIGIN}"] {
            if let Some(rest) = directory.strip_prefix(name) {
                let rest = rest.strip_prefix(b"/").unwrap_or(rest);
                return origin.join(OsStr::from_bytes(rest));
            }
        }
        PathBuf::from(OsStr::from_bytes(directory))
    };
    let named = directories.filter(|d| !d.is_empty());
    named.map(expand).collect()
}

/// The libraries of a program, each once, including those that its libraries need.
fn libraries(program: &Path, environment: &Environment) -> Vec<PathBuf> {
    let given = split(&environment.library_path, program);
    let preloaded = environment.preload.as_bytes().split(|b| b" :".contains(b));
    let preloaded = preloaded.map(|name| PathBuf::from(OsStr::from_bytes(name)));
    let mut found: Vec<PathBuf> = preloaded.filter(|path| is_file(path)).collect();
    let cache = library_cache::read();
    let mut last: Vec<PathBuf> = DIRECTORIES.map(PathBuf::from).into();
    // Built into Debian's loader.
    last.extend(["/lib", "/usr/lib"].map(|lib| format!("{lib}/{ARCH}-linux-gnu").into()));
    let mut known = BTreeSet::new();
    let mut at = None;
    while let Some(file) = at.map_or(Some(program), |n: usize| found.get(n).map(PathBuf::as_path)) {
        let needs = Needs::read(file).unwrap_or_default();
        let loader = needs.loader.filter(|loader| !found.contains(loader));
        // A loader has the C library's directory built in, and mostly lies there: Debian's without a cache, Nix's.
        last.extend(loader.iter().filter_map(|loader| real_directory(loader)));
        let mut fresh: Vec<PathBuf> = loader.into_iter().collect();
        for name in needs.names {
            if found.len() + fresh.len() < MAX_LIBRARIES && known.insert(name.clone()) {
                fresh.extend(find(&name, &[&given, &needs.directories], &cache, &last));
            }
        }
        found.extend(fresh);
        at = Some(at.map_or(0, |n| n + 1));
    }
    found
}

/// Paths of a library: all files that the loader may choose from, since its choice also depends on the
/// processor.
fn find(
    name: &OsStr,
    lists: &[&Vec<PathBuf>],
    cache: &[(OsString, PathBuf)],
    last: &[PathBuf],
) -> Vec<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(name)];
    }
    let in_directory = |directory: &Path| Some(directory.join(name)).filter(|p| is_file(p));
    let mut listed = lists.iter().flat_map(|list| list.iter());
    if let Some(path) = listed.find_map(|directory| in_directory(directory)) {
        return vec![path];
    }
    let cached = cache.iter().filter(|(n, _)| n == name);
    let cached: Vec<PathBuf> = cached.map(|(_, path)| path.clone()).collect();
    if !cached.is_empty() {
        return cached;
    }
    let found = last.iter().find_map(|directory| in_directory(directory));
    found.into_iter().collect()
}

/// The directory in which a file lies, to which its path may lead by links.
fn real_directory(path: &Path) -> Option<PathBuf> {
    let file = target_file::find(path).ok()?;
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    Some(real.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use memprof_code::modules::{AddressMap, ModuleTable};

    #[test]
    fn the_libraries_of_a_program_are_those_that_it_maps() {
        let pid = Pid(std::process::id());
        let own = Program::for_process(pid).expect("this one");
        assert_eq!(Some(own.path.clone()), env::current_exe().ok());
        let mut modules = ModuleTable::new();
        AddressMap::load(pid, &mut modules).unwrap();
        let files = own.libraries.iter().chain([&own.path]);
        let prepared: BTreeSet<_> = files
            .filter_map(|p| fs::metadata(p).ok())
            .map(|m| (m.dev(), m.ino()))
            .collect();
        for module in modules.modules().iter().filter(|m| m.path.is_absolute()) {
            let meta = fs::metadata(&module.path).unwrap();
            assert!(
                prepared.contains(&(meta.dev(), meta.ino())),
                "{}",
                module.path.display()
            );
        }
        assert_eq!(Program::for_process(Pid(u32::MAX)), None);
    }

    #[test]
    fn a_library_without_an_entry_in_the_cache_is_beside_the_loader() {
        let pid = Pid(std::process::id());
        let own = fs::read_link(format!("/proc/{}/exe", pid.0)).unwrap();
        let loader = Needs::read(&own).and_then(|needs| needs.loader);
        let Some(beside) = loader.and_then(|loader| real_directory(&loader)) else {
            return; // a static build
        };
        let name = OsStr::new("libc.so.6");
        let found = find(name, &[], &[], std::slice::from_ref(&beside));
        assert_eq!(found, [beside.join(name)]);
    }

    #[test]
    fn directories_are_told_from_where_the_file_lies() {
        let list = OsStr::new("$ORIGIN/../lib:/opt/x::${ORIGIN}");
        let want = ["/a/b/../lib", "/opt/x", "/a/b/"].map(PathBuf::from);
        assert_eq!(split(list, Path::new("/a/b/program")), want);
    }
}
