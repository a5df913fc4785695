//! Finds the Debian package with the debug files of a program, in dpkg's lists of installed files and apt's package
//! lists on this machine.

use std::cmp::Reverse;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use lz4_flex::frame::FrameDecoder;
use memchr::memmem::Finder;

use crate::modules::open_regular;
use memprof_profile::Module;
use memprof_sys::target_file::{Contents, ReadAt, about, find};

/// Maximum number of lists searched, and maximum total size of the lists, in bytes.
const MAX_LISTS: usize = 20_000;
const MAX_BYTES: u64 = 1 << 30;
/// Maximum size of a paragraph in dpkg's status file, in bytes.
const MAX_PARAGRAPH: usize = 64 << 10;
const CHUNK: usize = 256 << 10;

/// The name of the package with the debug files of a module's file; `None` if the file is not this machine's, belongs
/// to no package, or if apt knows no such package. `root` is `/` except in tests.
pub fn debug_package(root: &Path, module: &Module) -> Option<String> {
    let here = about(&find(&module.path).ok()?).ok()?;
    // A container may have another file at the same path.
    if here.identity() != module.file.as_ref()?.identity() {
        return None;
    }
    package_for(root, &module.path)
}

fn package_for(root: &Path, path: &Path) -> Option<String> {
    let mut left = MAX_BYTES;
    let owner = owner(root, path, &mut left)?;
    let source = source(root, &owner, &mut left);
    let names = [
        Some(format!("{owner}-dbg")),
        source.map(|source| format!("{source}-dbg")),
        Some(format!("{owner}-dbgsym")),
    ];
    let lists = files(&root.join("var/lib/apt/lists"), |name| {
        let plain = name.strip_suffix(".lz4").or(name.strip_suffix(".gz"));
        plain.unwrap_or(name).ends_with("_Packages")
    });
    let names: Vec<String> = names.into_iter().flatten().collect();
    let wanted: Vec<String> = names.iter().map(|n| format!("\nPackage: {n}\n")).collect();
    let found = lists
        .iter()
        .filter_map(|list| Some(search(list, &wanted, &mut left)?.0));
    names.into_iter().nth(found.min()?)
}

/// The package that owns a file.
fn owner(root: &Path, path: &Path, left: &mut u64) -> Option<String> {
    let path = path.to_str()?;
    let mut wanted = vec![format!("\n{path}\n")];
    // /bin and /lib are links to directories in /usr; packages use either name.
    if let Some(short) = path.strip_prefix("/usr") {
        wanted.push(format!("\n{short}\n"));
    }
    let mut lists = files(&root.join("var/lib/dpkg/info"), |name| {
        name.ends_with(".list")
    });
    // Most files are named like their package: libfoo.so.1 is in libfoo1. There are thousands of lists.
    let file = path.rsplit('/').next().unwrap_or(path);
    lists.sort_by_key(|list| Reverse(common_prefix(list, file)));
    let mut lists = lists.iter();
    let list = lists.find(|list| search(list, &wanted, left).is_some())?;
    // `libc6:amd64.list`
    let stem = list.file_stem()?.to_str()?;
    Some(stem.split(':').next()?.to_owned())
}

/// The number of bytes with which both the name of a file and `name` begin.
fn common_prefix(path: &Path, name: &str) -> usize {
    let own = path.file_name().unwrap_or_default().as_bytes();
    let same = own.iter().zip(name.as_bytes()).take_while(|(a, b)| a == b);
    same.count()
}

/// The source package of a package, if its name differs.
fn source(root: &Path, package: &str, left: &mut u64) -> Option<String> {
    let status = root.join("var/lib/dpkg/status");
    let wanted = [format!("\nPackage: {package}\n")];
    let (_, at) = search(&status, &wanted, left)?;
    let mut paragraph = vec![0; MAX_PARAGRAPH];
    let file = open_regular(&status).ok()?;
    let got = file.read_some(&mut paragraph, at + 1).ok()?;
    let text = String::from_utf8_lossy(&paragraph[..got]).into_owned();
    let text = text.split("\n\n").next()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Source: "))?;
    Some(line.split(' ').next()?.to_owned())
}

/// The files of a directory whose name `wanted` accepts, sorted.
fn files(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let paths = entries.flatten().take(MAX_LISTS).map(|e| e.path());
    let name = |path: &PathBuf| Some(wanted(path.file_name()?.to_str()?));
    let mut found: Vec<PathBuf> = paths.filter(|path| name(path) == Some(true)).collect();
    found.sort();
    found
}

/// The first of several texts that occurs in a file: its index, and its position in the file. The file is read once, in
/// chunks; `left` is the number of bytes that may still be read.
fn search(path: &Path, wanted: &[String], left: &mut u64) -> Option<(usize, u64)> {
    let file = open_regular(path).ok()?;
    let mut file = unpacked(file.contents(), path);
    let finders: Vec<Finder<'_>> = wanted.iter().map(Finder::new).collect();
    let longest = wanted.iter().map(String::len).max()?;
    let mut found: Option<(usize, u64)> = None;
    // A newline before the first line makes it match like all others.
    let mut text = b"\n".to_vec();
    let mut before: u64 = 0;
    let mut chunk = vec![0; CHUNK];
    while found.is_none_or(|(index, _)| index > 0) {
        let most = usize::try_from(*left).map_or(CHUNK, |left| left.min(CHUNK));
        let n = file.read(&mut chunk[..most]).unwrap_or(0);
        if n == 0 {
            break;
        }
        *left -= n as u64;
        text.extend(&chunk[..n]);
        let better = found.map_or(finders.len(), |(index, _)| index);
        let mut finders = finders[..better].iter().enumerate();
        let here = finders.find_map(|(index, finder)| Some((index, finder.find(&text)?)));
        if let Some((index, at)) = here {
            found = Some((index, (before + at as u64).saturating_sub(1)));
        }
        let done = text.len().saturating_sub(longest);
        text.drain(..done);
        before += done as u64;
    }
    found
}

/// The decompressed contents of a file, which apt may have compressed.
fn unpacked<'f>(file: Contents<'f>, path: &Path) -> Box<dyn Read + 'f> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("lz4") => Box::new(FrameDecoder::new(file)),
        Some("gz") => Box::new(GzDecoder::new(file)),
        _ => Box::new(file),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use memprof_sys::target_file::TargetFile;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_package_is_that_of_the_owner_or_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let info = "var/lib/dpkg/info";
        let list = format!("{info}/snake-minimal.list");
        write(root, &list, "/.\n/usr\n/usr/bin\n/usr/bin/snake\n");
        // A list that is larger than one chunk, and names its file without /usr.
        let many = "/usr/share/doc/x\n".repeat(20_000) + "/lib/libfoo.so.1\n";
        write(root, &format!("{info}/libfoo1:amd64.list"), &many);
        write(root, &format!("{info}/plain.list"), "/usr/bin/plain\n");
        write(
            root,
            "var/lib/dpkg/status",
            "Package: plain\nStatus: ok\n\nPackage: snake-minimal\nSource: snake (1.2)\nVersion: 3\n\nPackage: libfoo1\nX: y\n",
        );
        write(
            root,
            "var/lib/apt/lists/main_Packages",
            "Package: snake-dbg\nX: y\n\nPackage: libfoo1-dbgsym\n\nPackage: plain-dbgsymx\n",
        );
        let found = |path: &str| package_for(root, Path::new(path));
        assert_eq!(found("/usr/bin/snake").as_deref(), Some("snake-dbg"));
        assert_eq!(
            found("/usr/lib/libfoo.so.1").as_deref(),
            Some("libfoo1-dbgsym")
        );
        assert_eq!(found("/usr/bin/plain"), None);
        assert_eq!(found("/usr/bin/unknown"), None);
        // The package's own name comes first, wherever it is in the lists.
        write(
            root,
            "var/lib/apt/lists/other_Packages",
            "Package: snake-minimal-dbgsym\n\nPackage: snake-minimal-dbg\n",
        );
        assert_eq!(
            found("/usr/bin/snake").as_deref(),
            Some("snake-minimal-dbg")
        );
        fs::remove_file(root.join("var/lib/apt/lists/other_Packages")).unwrap();

        // A list that apt has compressed to save disk space.
        let text = fs::read(root.join("var/lib/apt/lists/main_Packages")).unwrap();
        fs::remove_file(root.join("var/lib/apt/lists/main_Packages")).unwrap();
        assert_eq!(found("/usr/bin/snake"), None);
        let mut packer = lz4_flex::frame::FrameEncoder::new(Vec::new());
        packer.write_all(&text).unwrap();
        let packed = packer.finish().unwrap();
        fs::write(root.join("var/lib/apt/lists/main_Packages.lz4"), packed).unwrap();
        assert_eq!(found("/usr/bin/snake").as_deref(), Some("snake-dbg"));
    }

    #[test]
    fn a_file_of_a_container_has_no_package_here() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let path = root.join("program");
        fs::write(&path, "x").unwrap();
        let list = "var/lib/dpkg/info/program.list";
        write(root, list, &format!("{}\n", path.display()));
        write(
            root,
            "var/lib/apt/lists/main_Packages",
            "Package: program-dbg\n",
        );
        let module = |file: TargetFile| Module {
            path: path.clone(),
            file: Some(file),
            ..Module::jit()
        };
        let here = module(open_regular(&path).unwrap());
        assert_eq!(debug_package(root, &here).as_deref(), Some("program-dbg"));
        let other = module(tempfile::tempfile().unwrap().into());
        assert_eq!(debug_package(root, &other), None);
    }
}
