//! The files that a process has loaded (loader, C library, allocator), and their functions.

use std::ops::Range;

use anyhow::{Context, Result, anyhow, bail};

use super::detours::Site;
use super::functions::{Known, known, names};
use super::loader_lock;
use memprof_code::elf::Elf;
use memprof_code::modules::{file_of, open_regular};
use memprof_sys::freeze::Functions;
use memprof_sys::ids::{Addr, Pid};
use memprof_sys::proc_dir;
use memprof_sys::procfs::Auxv;
use memprof_sys::residency::{Vma, proc_maps};
use memprof_sys::target_file::TargetFile;

/// Flag of `__libc_dlopen_mode`: the caller is a program, not the C library.
const RTLD_DLOPEN: i32 = i32::MIN;
/// Maximum number of files to read.
const MAX_FILES: usize = 4096;

/// The role of a loaded file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRole {
    /// The executable, or any library.
    Program {
        /// Whether the file is the executable.
        is_executable: bool,
    },
    /// A part of the C library.
    Libc,
    /// The dynamic loader.
    Loader,
    /// A library that defines `malloc`.
    Allocator,
}

/// Functions that memprof calls, and symbols that identify a file's role.
const WANTED: [&str; 7] = [
    "__errno_location",
    "dlopen",
    "__libc_dlopen_mode",
    "dlerror",
    "gnu_get_libc_version",
    "malloc",
    "memprof_heap_config",
];

/// A loaded file.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Device and inode number.
    pub id: ((u32, u32), u64),
    /// Base name of the file.
    pub name: String,
    pub file: TargetFile,
    pub kind: FileRole,
    /// Address ranges in the file of the functions with a [`Known`] role.
    functions: Vec<(Range<u64>, Known)>,
    /// Addresses of the [`WANTED`] symbols in the file.
    wanted: [Option<u64>; WANTED.len()],
    /// Address ranges of the file's executable mappings, each with its load bias: the address in the process minus
    /// the address in the file.
    code: Vec<(Range<u64>, u64)>,
}

impl Loaded {
    /// Address in the process of one of the [`WANTED`] symbols.
    fn address(&self, name: &str) -> Option<u64> {
        let place = WANTED.iter().position(|wanted| *wanted == name)?;
        let (_, bias) = self.code.first()?;
        Some(self.wanted[place]?.wrapping_add(*bias))
    }

    fn has(&self, name: &str) -> bool {
        let place = WANTED.iter().position(|wanted| *wanted == name);
        place.is_some_and(|place| self.wanted[place].is_some())
    }

    fn kind_of(&self, is_loader: bool, is_executable: bool) -> FileRole {
        // Separate files before glibc 2.34.
        let parts = ["libpthread", "libdl"];
        let is_part_of_libc = parts.iter().any(|part| self.name.starts_with(part));
        match () {
            () if is_loader => FileRole::Loader,
            () if self.has("gnu_get_libc_version") || is_part_of_libc => FileRole::Libc,
            () if is_executable || self.has("memprof_heap_config") => {
                FileRole::Program { is_executable }
            }
            () if self.has("malloc") => FileRole::Allocator,
            () => FileRole::Program { is_executable },
        }
    }

    /// The role of the function at an address in the file.
    pub(super) fn function_at(&self, address: u64) -> Option<Known> {
        let mut functions = self.functions.iter();
        let found = functions.find(|(range, _)| range.contains(&address))?;
        Some(found.1)
    }
}

/// The files that a process has loaded.
#[derive(Debug)]
pub(super) struct Files {
    pub files: Vec<Loaded>,
    /// Whether the executable contains the allocator.
    pub own_malloc: bool,
    /// Address of the loader's lock in the process, if it was found.
    pub loader_lock: Option<u64>,
}

impl Files {
    /// Reads the loaded files of a process.
    ///
    /// # Errors
    /// The process cannot load the library; the error says why.
    pub(super) fn read(pid: Pid) -> Result<Files> {
        let executable = open_regular(proc_dir::path(pid, "exe").as_ref())
            .with_context(|| format!("cannot open the executable of process {pid}"))?;
        let elf = Elf::read(&executable).map_err(|e| anyhow!("its executable: {e}"))?;
        if elf.machine() != object::elf::EM_X86_64 {
            bail!("it is not a program for x86-64");
        }
        let loader = loader_address(pid)?;
        if elf.interpreter().is_none() || loader == 0 {
            bail!(
                "it is linked statically, or was started by naming the dynamic loader: it has no loader that could load a library"
            );
        }
        let vmas = proc_maps::parse(&proc_dir::read(pid, "maps")?)?;
        let mut files = mapped(pid, &vmas);
        let main = executable.identity();
        for file in &mut files {
            let mut vmas = vmas.iter().filter(|vma| (vma.dev, vma.ino) == file.id);
            let is_loader = vmas.any(|vma| vma.contains(Addr(loader)));
            file.kind = file.kind_of(is_loader, file.file.identity() == main);
        }
        let of_program = |file: &&Loaded| {
            file.kind
                == FileRole::Program {
                    is_executable: true,
                }
        };
        let own_malloc = files
            .iter()
            .filter(of_program)
            .any(|file| file.has("malloc"));
        let loader = files.iter().find(|file| file.kind == FileRole::Loader);
        let loader_lock = loader.and_then(|file| {
            let (_, bias) = file.code.first()?;
            Some(loader_lock::find(&file.file)?.wrapping_add(*bias))
        });
        Ok(Files {
            files,
            own_malloc,
            loader_lock,
        })
    }

    /// The file with code at an address of the process, and the corresponding address in the file.
    pub(super) fn at(&self, address: u64) -> Option<(&Loaded, u64)> {
        self.files.iter().find_map(|file| {
            let (_, bias) = file
                .code
                .iter()
                .find(|(range, _)| range.contains(&address))?;
            Some((file, address.wrapping_sub(*bias)))
        })
    }

    /// Address of the library's options if the library is already loaded.
    pub(super) fn attached(&self) -> Option<u64> {
        let mut files = self.files.iter();
        files.find_map(|file| file.address("memprof_heap_config"))
    }

    /// musl's C library, which is also its loader; `None` if the process has another one.
    pub(super) fn musl(&self) -> Option<Site> {
        let is_musl = |file: &&Loaded| file.kind == FileRole::Loader && file.has("dlopen");
        let file = self.files.iter().find(is_musl)?;
        let (_, bias) = file.code.first()?;
        Some(Site {
            file: file.file.clone(),
            bias: *bias,
        })
    }

    /// The name of a library that takes the place of the C library's allocator, if the process has one.
    pub(super) fn other_allocator(&self) -> Option<&str> {
        let mut files = self.files.iter();
        let found = files.find(|file| file.kind == FileRole::Allocator)?;
        Some(&found.name)
    }

    /// Addresses of the C library's functions that load a library.
    ///
    /// # Errors
    /// The C library has no such functions; the error says why.
    pub(super) fn functions(&self) -> Result<Functions> {
        let libc = |file: &&Loaded| file.kind == FileRole::Libc;
        let find = |name| {
            self.files
                .iter()
                .filter(libc)
                .find_map(|file| file.address(name))
        };
        let now = libc::RTLD_NOW | libc::RTLD_NODELETE;
        let load = match (find("dlopen"), find("__libc_dlopen_mode")) {
            (Some(dlopen), _) => Some((dlopen, now)),
            (None, Some(mode)) => Some((mode, now | RTLD_DLOPEN)),
            (None, None) => None,
        };
        match (load, find("__errno_location")) {
            (Some((load, flags)), Some(errno)) => Ok(Functions {
                errno,
                load,
                flags: flags.cast_unsigned(),
                error: find("dlerror").unwrap_or(0),
            }),
            _ => {
                bail!("its C library is not glibc, as far as memprof can tell: it has no `dlopen`")
            }
        }
    }
}

/// The files whose code a process has mapped.
fn mapped(pid: Pid, vmas: &[Vma]) -> Vec<Loaded> {
    let mut files: Vec<Loaded> = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.perms.exec && vma.ino != 0) {
        let known = files
            .iter()
            .position(|known| known.id == (vma.dev, vma.ino));
        let place = match known {
            Some(place) => place,
            None if files.len() >= MAX_FILES => continue,
            None => match look(pid, vma) {
                Some(found) => {
                    files.push(found);
                    files.len() - 1
                }
                None => continue,
            },
        };
        let file = &mut files[place];
        let begins = Elf::read(&file.file)
            .ok()
            .and_then(|elf| elf.address_of_mapping(vma.file_offset, vma.len()));
        if let Some(begins) = begins {
            let bias = vma.start.0.wrapping_sub(begins);
            file.code.push((vma.start.0..vma.end.0, bias));
        }
    }
    files
}

/// Reads the symbols of a file.
fn look(pid: Pid, vma: &Vma) -> Option<Loaded> {
    let file = file_of(pid, vma)?;
    let elf = Elf::read(&file).ok()?;
    let mut wanted = [None; WANTED.len()];
    let mut functions = Vec::new();
    let names: Vec<&'static str> = WANTED.iter().copied().chain(names()).collect();
    let _ = elf.for_each_defined(&names, |name, extent| {
        if let Some(place) = WANTED.iter().position(|wanted| *wanted == name) {
            wanted[place] = Some(extent.address);
        }
        let Some(known) = known(name) else { return };
        let end = extent.address.saturating_add(extent.size);
        functions.push((extent.address..end, known));
    });
    Some(Loaded {
        id: (vma.dev, vma.ino),
        name: vma.label().to_owned(),
        kind: FileRole::Program {
            is_executable: false,
        },
        functions,
        wanted,
        code: Vec::new(),
        file,
    })
}

/// Load address of the dynamic loader, or 0 without one.
fn loader_address(pid: Pid) -> Result<u64> {
    let auxv = Auxv::for_process(pid)
        .with_context(|| format!("cannot read how process {pid} was started"))?;
    Ok(auxv.get(libc::AT_BASE).unwrap_or(0))
}
