//! Debug information outside the program's own file: split DWARF (`.dwo` files, and `.dwp` packages of them), and the
//! file that several programs share (dwz, `.gnu_debugaltlink`).
//!
//! Like debug files, these files are looked up in memprof's own file tree, then in that of the processes that use the
//! program. They must have the id that the program specifies.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{AbbreviationsCacheStrategy, Dwarf, DwarfPackage, DwoId};

use super::debugfile::{DEBUG_DIRS, by_build_id, open};
use super::sections::{SectionMemory, Slice};
use crate::elf::Elf;
use memprof_profile::Module;
use memprof_sys::target_file::{FileTree, TargetFile};

/// Maximum number of `.dwo` files read for one program.
const MAX_UNITS: usize = 4096;
/// Maximum length of a path on Linux, in bytes.
const LONGEST_PATH: usize = 4096;
/// Maximum number of missing files remembered by name.
const MAX_NAMED: usize = 16;

/// State of the other files with a program's debug information.
pub(super) struct Split {
    program: PathBuf,
    /// The program's file tree, if it differs from memprof's own.
    tree: Option<FileTree>,
    /// Packages refer to memory in `kept`, so they are dropped first. `None` until they are needed.
    packages: Option<Vec<DwarfPackage<Slice>>>,
    units: usize,
    /// Files that were not found.
    missing: BTreeSet<PathBuf>,
    pub kept: SectionMemory,
}

impl Split {
    /// Creates the state for a program, with no file looked up yet.
    pub fn new(program: &Module, kept: SectionMemory) -> Split {
        Split {
            program: program.path.clone(),
            tree: program.tree.clone(),
            packages: None,
            units: 0,
            missing: BTreeSet::new(),
            kept,
        }
    }

    /// The debug information that the file shares with others, if any.
    pub fn shared(&mut self, elf: &Elf) -> Option<Dwarf<Slice>> {
        let (name, id) = elf.shared_link()?;
        let name = Path::new(OsStr::from_bytes(&name));
        let found = self.shared_at(name, &id);
        if found.is_none() {
            self.is_missing(name);
        }
        found
    }

    fn shared_at(&mut self, name: &Path, id: &[u8]) -> Option<Dwarf<Slice>> {
        let mut paths = vec![self.beside(name)];
        let base = name.file_name().unwrap_or_default();
        paths.extend(
            DEBUG_DIRS
                .iter()
                .map(|dir| Path::new(dir).join(".dwz").join(base)),
        );
        paths.extend(by_build_id(id));
        let tree = self.tree.clone();
        paths
            .iter()
            .filter(|path| path.is_absolute())
            .flat_map(|path| open(path, tree.as_ref()))
            .find_map(|file| {
                let elf = Elf::read_debug_file(&file).ok()?;
                if !elf.is_shared(id) {
                    return None;
                }
                let sections = self.kept.load(&file, &elf, false)?;
                let load =
                    |id: gimli::SectionId| Ok::<_, Infallible>(sections.get(Some(id.name())));
                let mut dwarf = Dwarf::load(load).ok()?;
                dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
                Some(dwarf)
            })
    }

    /// The split debug information of a unit, from the package or from its own file.
    pub fn unit(&mut self, wanted: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf<Slice>>> {
        let text = |slice: &Option<Slice>| slice.map_or(&[][..], |s| s.slice());
        let [path, dir] =
            [&wanted.path, &wanted.comp_dir].map(|s| Path::new(OsStr::from_bytes(text(s))));
        let found = self
            .packed_unit(wanted)
            .or_else(|| self.single_unit(wanted, path, dir));
        if found.is_none() {
            self.is_missing(path);
        }
        found.map(Arc::new)
    }

    fn packed_unit(&mut self, wanted: &SplitDwarfLoad<Slice>) -> Option<Dwarf<Slice>> {
        if self.packages.is_none() {
            self.packages = Some(self.open_packages());
        }
        let mut packages = self.packages.iter().flatten();
        packages.find_map(|package| package.find_cu(wanted.dwo_id, &wanted.parent).ok()?)
    }

    /// Opens the packages, which are named after the program with `.dwp` appended.
    fn open_packages(&mut self) -> Vec<DwarfPackage<Slice>> {
        let mut path = self.program.clone().into_os_string();
        path.push(".dwp");
        let files = open(Path::new(&path), self.tree.as_ref());
        let files: Vec<TargetFile> = files.collect();
        files
            .iter()
            .filter_map(|file| {
                let elf = Elf::read_debug_file(file).ok()?;
                let sections = self.kept.load(file, &elf, true)?;
                let load =
                    |id: gimli::SectionId| Ok::<_, gimli::Error>(sections.get(id.dwo_name()));
                DwarfPackage::load(load, sections.get(None)).ok()
            })
            .collect()
    }

    /// Reads a unit from its own file, at the path that the compiler recorded or next to the program.
    fn single_unit(
        &mut self,
        wanted: &SplitDwarfLoad<Slice>,
        path: &Path,
        dir: &Path,
    ) -> Option<Dwarf<Slice>> {
        let base = Path::new(path.file_name()?);
        let paths = [dir.join(path), self.beside(path), self.beside(base)];
        let tree = self.tree.clone();
        paths
            .iter()
            .filter(|path| path.is_absolute())
            .flat_map(|path| open(path, tree.as_ref()))
            .find_map(|file| {
                if self.units >= MAX_UNITS {
                    return None;
                }
                self.units += 1;
                let elf = Elf::read_debug_file(&file).ok()?;
                let sections = self.kept.load_unit(&elf)?;
                let load = |id: gimli::SectionId| Ok::<_, Infallible>(sections.get(id.dwo_name()));
                let mut dwarf = Dwarf::load(load).ok()?;
                (id_of(&dwarf)? == wanted.dwo_id).then(|| {
                    dwarf.make_dwo(&wanted.parent);
                    dwarf
                })
            })
    }

    /// A message about files that were not found; `None` if all were found.
    pub fn missing(&self) -> Option<String> {
        let first = self.missing.first()?.display();
        Some(match self.missing.len() - 1 {
            0 => format!("{first} was not found"),
            1.. if self.missing.len() == MAX_NAMED => {
                format!("{first} and many more files were not found")
            }
            more => format!("{first} and {more} more were not found"),
        })
    }

    fn beside(&self, path: &Path) -> PathBuf {
        self.program.parent().unwrap_or(Path::new("")).join(path)
    }

    fn is_missing(&mut self, path: &Path) {
        let path = match path.as_os_str().len() {
            0..=LONGEST_PATH => path,
            _ => Path::new("a file with a longer path than there are"),
        };
        if self.missing.len() < MAX_NAMED {
            self.missing.insert(path.to_owned());
        }
    }
}

/// The id of the unit in a `.dwo` file.
fn id_of(dwarf: &Dwarf<Slice>) -> Option<DwoId> {
    let header = dwarf.units().next().ok()??;
    dwarf.unit(header).ok()?.dwo_id
}
