//! What the library says of itself in a process, whichever memprof has put it there.

use std::os::unix::fs::FileExt;

use object::elf::SHT_DYNSYM;

use super::DetoursPlaced;
use super::file::{DETOURS, NAME};
use memprof_code::elf::Elf;
use memprof_code::modules::file_of;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::residency::proc_maps;

/// The detours of a process's executable; `None` if the process has no library, or it cannot be read.
pub fn detours_placed(pid: Pid) -> Option<DetoursPlaced> {
    let vmas = proc_maps::parse(&proc_dir::read(pid, "maps").ok()?).ok()?;
    let mut own = vmas
        .iter()
        .filter(|vma| vma.file_offset == 0 && vma.label().contains(NAME));
    own.find_map(|vma| {
        let file = file_of(pid, vma)?;
        let elf = Elf::read(&file).ok()?;
        let [detours] = elf.extents(SHT_DYNSYM, [DETOURS]).ok()?;
        let at = vma.start.0.checked_add(detours?.address)?;
        let mut bytes = [0; DetoursPlaced::SIZE];
        let memory = proc_dir::open(pid, "mem").ok()?;
        memory.read_exact_at(&mut bytes, at).ok()?;
        DetoursPlaced::parse(&bytes)
    })
}
