//! Gives the library to a running process whose program is linked statically: all threads are stopped for a moment, one of them maps
//! the library, and memprof writes the jumps of the detours (`sampler/without_loader.rs`).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::AttachConfig;
use super::detours::{Jumps, plan};
use super::report::without_loader;
use crate::sampler::without_loader::{Placement, Source, no_function};
use crate::sampler::{Image, Options};
use memprof_code::allocators::Detours;
use memprof_code::elf::Elf;
use memprof_sys::freeze::Loader;
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::proc_dir;
use memprof_sys::target_file::TargetFile;
use memprof_sys::text::printable;

/// The executable of a process that has no loader; `None` if it has one.
pub(super) fn static_program(pid: Pid) -> Result<Option<TargetFile>> {
    let executable = TargetFile::at_link(Path::new(&proc_dir::path(pid, "exe")))?;
    let elf = Elf::read(&executable).map_err(|e| anyhow!("its executable: {e}"))?;
    let has_loader = elf.interpreter().is_some();
    Ok((!has_loader).then_some(executable))
}

/// Plans the detours. Refuses a program that has none: nothing else could see its allocations.
pub(super) fn plan_detours(pid: Pid, executable: &TargetFile) -> Result<Detours> {
    let detours = plan(pid, executable)?;
    if detours.all.is_empty() {
        bail!(
            "it is linked statically, and {}; use `memprof --heap=exact --duration 10 --pid {pid}`, which counts every call, or \
             `memprof heap --pid {pid}`; nothing was done",
            printable(&no_function(&detours))
        );
    }
    Ok(detours)
}

/// Maps the library, and writes the jumps. Returns the text for the user.
pub(super) fn attach(
    config: &AttachConfig,
    pid: Pid,
    name: &str,
    executable: &TargetFile,
) -> Result<Vec<u8>> {
    let options = Options {
        interval: config.interval,
        ..Options::default()
    };
    let detours = plan_detours(pid, executable)?;
    let image = Image::for_running(&options, &detours)?;
    let mut library = File::from(memfd_create(c"memprof", MFdFlags::MFD_CLOEXEC)?);
    library.write_all(&image.bytes)?;
    let jumps = Jumps::new(pid, executable, &detours).map_err(|e| anyhow!(e))?;
    let by = Loader::prepare_with_room(pid, jumps.room(executable)).map_err(|e| anyhow!(e))?;
    // Privileges go only now: opening the process's files and memory above may need them if it runs as another user.
    privileges::reduce(ThreadRole::Attach);
    let begun = Instant::now();
    let placement = Placement {
        pid,
        library: &library,
        source: Source::Contents(&image.bytes),
        places: image.places,
        detours: &detours,
        code: image
            .code
            .ok_or_else(|| anyhow!("it has too many functions"))?,
        bias: jumps.bias,
    };
    let redirected = jumps.write_within(config.wait, Some(&by), |process| {
        placement.place(process).map(|placed| placed.state)
    });
    let redirected = redirected.map_err(|why| anyhow!("{why}"))?;
    Ok(without_loader(pid, name, redirected, begun.elapsed()).into_bytes())
}
