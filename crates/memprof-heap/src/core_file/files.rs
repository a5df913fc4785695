//! The files that were mapped: found by their paths, below another root if wanted, and compared with the core by build id.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use object::elf::{ELFMAG, PT_NOTE, ProgramType};
use schemars::JsonSchema;
use serde::Serialize;

use super::headers::{EHDR, PHDR};
use super::mappings::Mapping;
use super::notes::Notes;
use memprof_code::elf::{Elf, find_build_id, u16_at, u32_at, u64_at};
use memprof_sys::residency::{Backing, Vma};
use memprof_sys::target_file::{ReadAt, TargetFile, find, find_in};

/// Maximum number of files that are open at once.
const MAX_FILES: usize = 512;
/// Maximum size of a file's first page and of its notes, in bytes.
const MAX_HEAD: u64 = 64 << 10;

/// How a mapped file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HeapCoreFileState")]
pub enum CoreFileState {
    /// Its build id is that of the file in the core.
    Matches,
    /// The core or the file has no build id, so whether it is the same file is unknown. It is used.
    Unchecked,
    /// Its build id is another one: it is not used.
    Differs,
    /// It was not found, or cannot be read.
    NotFound,
}

/// A file that was mapped as code, or whose bytes are in the core.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapCoreFile")]
pub struct CoreFileRow {
    /// Path in the process.
    pub path: String,
    /// How it was found.
    pub state: CoreFileState,
    /// Why it was not found.
    pub error: Option<String>,
}

/// Where to look for files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorePaths {
    /// The program, instead of the path in the core.
    pub executable: Option<PathBuf>,
    /// The directory below which the paths of the core are looked up.
    pub root: Option<PathBuf>,
}

/// The files of a core.
#[derive(Debug, Default)]
pub(crate) struct CoreFiles {
    /// The files by the number of their path, which is the inode number of their mappings.
    files: HashMap<u64, TargetFile>,
    /// What is known of each.
    pub(super) rows: Vec<CoreFileRow>,
    /// The path of the program.
    executable: Option<String>,
    /// Id and name of the process.
    pid: u32,
    comm: String,
}

impl CoreFiles {
    /// Finds the files; none without `paths`. Sets the permissions of mappings that have no segment.
    ///
    /// # Errors
    /// The program or the root that `paths` names cannot be opened, or it is another program.
    pub(super) fn find(
        core: &dyn ReadAt,
        mappings: &mut [Mapping],
        notes: &Notes,
        paths: Option<&CorePaths>,
    ) -> Result<CoreFiles> {
        let mut found = CoreFiles {
            executable: notes.executable().map(str::to_owned),
            pid: notes.pid.unwrap_or(0),
            comm: notes.comm.clone(),
            ..CoreFiles::default()
        };
        let Some(paths) = paths else {
            return Ok(found);
        };
        ensure!(
            paths.executable.is_none() || found.executable.is_some(),
            "the core does not say which of its files is the program, so --exe cannot be used"
        );
        let root = paths.root.as_deref().map(|root| {
            let handle = find(root);
            handle.with_context(|| format!("cannot open {}, given as --sysroot", root.display()))
        });
        let root = root.transpose()?;
        let mut seen = HashSet::new();
        for mapping in mappings.iter() {
            let vma = &mapping.vma;
            let has_bytes = mapping.bytes.is_none_or(|(_, size)| size > 0);
            let wanted = vma.backing == Backing::File && (vma.perms.exec || has_bytes);
            if wanted && found.rows.len() < MAX_FILES && seen.insert(vma.ino) {
                let id = build_id(core, mappings, vma.ino);
                found.open(vma, id.as_deref(), root.as_ref(), paths)?;
            }
        }
        for mapping in mappings.iter_mut().filter(|m| m.bytes.is_none()) {
            let vma = &mut mapping.vma;
            let file = found.files.get(&vma.ino);
            let elf = file.and_then(|file| Elf::read(file).ok());
            let len = vma.len();
            vma.perms.exec = elf
                .and_then(|elf| elf.address_of_mapping(vma.file_offset, len))
                .is_some();
        }
        Ok(found)
    }

    fn open(
        &mut self,
        vma: &Vma,
        id: Option<&[u8]>,
        root: Option<&File>,
        paths: &CorePaths,
    ) -> Result<()> {
        let named = paths.executable.as_deref();
        let named = named.filter(|_| self.executable.as_deref() == Some(&vma.name));
        let opened = match (named, root) {
            (Some(path), _) => find(path),
            (None, root) => look_up(&vma.name, root),
        };
        let opened = opened.and_then(TargetFile::of_handle);
        let mut row = CoreFileRow {
            path: vma.name.clone(),
            state: CoreFileState::NotFound,
            error: None,
        };
        match opened {
            Ok(file) => {
                let own = Elf::read(&file).ok().and_then(|elf| elf.build_id());
                row.state = match (id, own) {
                    (Some(id), Some(own)) if id == own => CoreFileState::Matches,
                    (Some(_), Some(_)) => CoreFileState::Differs,
                    // A file of this name is another one if that of the process was deleted.
                    _ if vma.deleted && named.is_none() => CoreFileState::Differs,
                    _ => CoreFileState::Unchecked,
                };
                if let (Some(path), CoreFileState::Differs) = (named, row.state) {
                    bail!(
                        "{} is not the program of the core, {}: their build ids differ",
                        path.display(),
                        vma.name
                    );
                }
                if row.state != CoreFileState::Differs {
                    self.files.insert(vma.ino, file);
                }
            }
            Err(e) => {
                if let Some(path) = named {
                    return Err(e).with_context(|| format!("cannot open {}", path.display()));
                }
                row.error = Some(e.to_string());
            }
        }
        self.rows.push(row);
        Ok(())
    }

    /// The file of a mapping, if it was found.
    pub(crate) fn file_of(&self, vma: &Vma) -> Option<TargetFile> {
        self.files.get(&vma.ino).cloned()
    }

    /// Id of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Name of the process.
    pub(crate) fn comm(&self) -> &str {
        &self.comm
    }

    /// The path of the program.
    pub(crate) fn executable(&self) -> Option<String> {
        self.executable.clone()
    }
}

/// Looks up a path from a core. The core may name any file of this machine, so kernel file systems are out of bounds.
fn look_up(path: &str, root: Option<&File>) -> io::Result<File> {
    let path = Path::new(path);
    let mut parts = path.components();
    let refused = !path.is_absolute() || parts.any(|part| part == Component::ParentDir);
    let special = ["/proc", "/sys", "/dev"];
    if refused || root.is_none() && special.iter().any(|dir| path.starts_with(dir)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a path of a program or library",
        ));
    }
    match root {
        Some(root) => find_in(root, path, 0),
        None => find(path),
    }
}

/// The build id of a mapped file, from its first page in the core.
fn build_id(core: &dyn ReadAt, mappings: &[Mapping], inode: u64) -> Option<Vec<u8>> {
    let mut own = mappings.iter().filter(|m| m.vma.ino == inode);
    own.find_map(|mapping| {
        let (at, size) = mapping.bytes.filter(|_| mapping.vma.file_offset == 0)?;
        let mut head = vec![0; size.min(MAX_HEAD) as usize];
        let got = core.read_some(&mut head, at).ok()?;
        head.truncate(got);
        build_id_in(&head)
    })
}

/// The build id in the first bytes of an ELF file.
fn build_id_in(head: &[u8]) -> Option<Vec<u8>> {
    (head.len() >= EHDR && head[..4] == ELFMAG).then_some(())?;
    let (at, count) = (u64_at(head, 32), usize::from(u16_at(head, 56)));
    let headers = head.get(usize::try_from(at).ok()?..)?;
    let mut notes = headers.chunks_exact(PHDR).take(count).filter_map(|header| {
        (ProgramType(u32_at(header, 0)) == PT_NOTE).then_some(())?;
        let (offset, size) = (u64_at(header, 8), u64_at(header, 32));
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        let align = if u64_at(header, 48) == 8 { 8 } else { 4 };
        Some((head.get(start..end)?, align))
    });
    notes.find_map(|(bytes, align)| find_build_id(bytes, align))
}

/// Fills a buffer with the bytes of a mapped file, and with zeroes behind its end. `None` if it cannot be read.
pub(super) fn page_of_file(file: &TargetFile, at: u64, page: &mut [u8]) -> Option<()> {
    let got = file.read_some(page, at).ok()?;
    page[got..].fill(0);
    Some(())
}
