//! Finds separate debug files, which contain the symbols that distributions strip from programs.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::debuginfod_cache::CacheDirs;
use super::fetch::BuildId;
use crate::elf::Elf;
use crate::modules::open_regular;
use memprof_profile::Module;
use memprof_sys::target_file::{FileTree, TargetFile};

pub(super) const DEBUG_DIRS: [&str; 2] = ["/usr/lib/debug", "/usr/local/lib/debug"];
/// Maximum size of a file whose checksum is computed, in bytes.
const MAX_CHECKED: u64 = 4 << 30;

/// Opens the files at a path: in memprof's own file tree, and in that of the processes that use the module. The caller
/// checks by their contents which one is right.
pub(super) fn open(path: &Path, tree: Option<&FileTree>) -> impl Iterator<Item = TargetFile> {
    let own = open_regular(path).ok();
    own.into_iter()
        .chain(tree.into_iter().filter_map(|tree| tree.open(path).ok()))
}

/// Opens the debug file of a module, if it is installed or in the cache of debuginfod clients.
///
/// Either file tree may have a different file at the same path. So the file must have the module's build id or, for a
/// module without a build id, the checksum in the module's debug link.
pub(super) fn find(elf: &Elf, module: &Module, cache: &CacheDirs) -> Option<TargetFile> {
    let tree = module.tree.as_ref();
    let id = elf.build_id();
    let link = elf.debug_link();
    let by_id = id.iter().flat_map(|id| by_build_id(id));
    let by_link = link
        .iter()
        .flat_map(|(name, _)| by_link(name, &module.path));
    let is_same = |file: &TargetFile| match (&id, &link) {
        (Some(id), _) => Elf::read(file).is_ok_and(|elf| elf.build_id().as_ref() == Some(id)),
        (None, Some((_, crc))) => checksum(file) == Some(*crc),
        (None, None) => false,
    };
    let installed = by_id
        .chain(by_link)
        .find_map(|path| open(&path, tree).find(is_same));
    installed.or_else(|| cache.find(&BuildId::from_elf(elf)?))
}

/// Opens the debug file with this build id, if it is installed.
pub fn debug_file_of(id: &[u8]) -> Option<TargetFile> {
    let has_id = |file: &TargetFile| {
        Elf::read_debug_file(file).is_ok_and(|elf| elf.build_id().as_deref() == Some(id))
    };
    let mut paths = by_build_id(id).into_iter();
    paths.find_map(|path| open_regular(&path).ok().filter(has_id))
}

/// The paths at which a debug file with this build id may be installed.
pub(super) fn by_build_id(id: &[u8]) -> Vec<PathBuf> {
    let hex: Vec<String> = id.iter().map(|b| format!("{b:02x}")).collect();
    let Some((first, rest)) = hex.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return Vec::new();
    };
    let below = format!(".build-id/{first}/{}.debug", rest.concat());
    DEBUG_DIRS
        .iter()
        .map(|dir| Path::new(dir).join(&below))
        .collect()
}

fn by_link(name: &[u8], module: &Path) -> Vec<PathBuf> {
    let name = Path::new(OsStr::from_bytes(name));
    let Some(dir) = module.parent().filter(|dir| dir.is_absolute()) else {
        return Vec::new();
    };
    // A debug link is a base name; a link to another directory is not followed.
    if name.file_name() != Some(name.as_os_str()) {
        return Vec::new();
    }
    let mut paths = vec![dir.join(".debug").join(name)];
    if module.file_name() != Some(name.as_os_str()) {
        paths.push(dir.join(name));
    }
    let inside = dir.strip_prefix("/").unwrap_or(dir);
    paths.extend(
        DEBUG_DIRS
            .iter()
            .map(|debug| Path::new(debug).join(inside).join(name)),
    );
    paths
}

/// The CRC-32 of the whole file, as in debug links.
fn checksum(file: &TargetFile) -> Option<u32> {
    let mut contents = file.contents();
    if file.about().size() > MAX_CHECKED {
        return None;
    }
    let table = crc_table();
    let mut buf = vec![0; 256 << 10];
    let mut crc = u32::MAX;
    loop {
        let n = contents.read(&mut buf).ok()?;
        if n == 0 {
            return Some(!crc);
        }
        for b in &buf[..n] {
            crc = table[((crc ^ u32::from(*b)) & 0xff) as usize] ^ (crc >> 8);
        }
    }
}

fn crc_table() -> [u32; 256] {
    std::array::from_fn(|i| {
        let step = |c: u32| {
            if c & 1 == 1 {
                0xedb8_8320 ^ (c >> 1)
            } else {
                c >> 1
            }
        };
        (0..8).fold(i as u32, |c, _| step(c))
    })
}
