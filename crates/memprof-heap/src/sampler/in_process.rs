//! The library in a process, whichever memprof has put it there.

use std::os::unix::fs::FileExt;

use object::elf::SHT_DYNSYM;

use super::DetoursPlaced;
use super::file::{DETOURS, NAME};
use memprof_code::elf::Elf;
use memprof_code::modules::file_of;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::residency::{Vma, proc_maps};
use memprof_sys::target_file::TargetFile;

/// The detours of a process's executable; `None` if the process has no library, or it cannot be read.
pub fn detours_placed(pid: Pid) -> Option<DetoursPlaced> {
    let (at, _) = find(pid)?;
    read(pid, at)
}

/// What detours of a process can lead to, and the address of the [`DetoursPlaced`]; `None` without the library, or with that of
/// another release.
#[cfg(target_arch = "x86_64")]
pub(crate) fn mapped_library(pid: Pid) -> Option<(super::words::MappedLibrary, u64)> {
    let (at, file) = find(pid)?;
    let placed = read(pid, at)?;
    let elf = Elf::read(&file).ok()?;
    let [tables, detours] = elf.extents(SHT_DYNSYM, [TABLES, DETOURS]).ok()?;
    let (tables, detours) = (tables?, detours?);
    let fits = tables.size == super::words::TABLES_BYTES && placed.thread_state != 0;
    let library = super::words::MappedLibrary {
        base: at.checked_sub(detours.address)?,
        relative: elf.relative_words(),
        tables: tables.address,
        thread_state: placed.thread_state,
    };
    fits.then_some((library, at))
}

#[cfg(target_arch = "x86_64")]
const TABLES: &str = "memprof_heap_tables";

/// The address of the [`DetoursPlaced`], and the library's file.
fn find(pid: Pid) -> Option<(u64, TargetFile)> {
    let vmas = proc_maps::parse(&proc_dir::read(pid, "maps").ok()?).ok()?;
    let is_own = |vma: &&Vma| vma.file_offset == 0 && vma.label().contains(NAME);
    vmas.iter().filter(is_own).find_map(|vma| {
        let file = file_of(pid, vma)?;
        let elf = Elf::read(&file).ok()?;
        let [detours] = elf.extents(SHT_DYNSYM, [DETOURS]).ok()?;
        let detours = detours.filter(|it| it.size == DetoursPlaced::SIZE as u64)?;
        Some((vma.start.0.checked_add(detours.address)?, file))
    })
}

fn read(pid: Pid, at: u64) -> Option<DetoursPlaced> {
    let mut bytes = [0; DetoursPlaced::SIZE];
    let memory = proc_dir::open(pid, "mem").ok()?;
    memory.read_exact_at(&mut bytes, at).ok()?;
    DetoursPlaced::parse(&bytes)
}
