//! Gives the library to a running process that cannot load it, because its program is linked statically or its C library is musl: all
//! threads are stopped for a moment, one of them maps the library, and memprof writes the jumps of the detours
//! (`sampler/without_loader.rs`).

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::AttachConfig;
use super::detours::{Jumps, Site};
use super::loaded_files::Files;
use super::report::without_loader;
use crate::sampler::without_loader::{Placement, Source, no_function};
use crate::sampler::{Image, Options};
use memprof_code::allocators::{self, Detours, ThreadStates};
use memprof_code::elf::Elf;
use memprof_sys::freeze::Loader;
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::text::printable;

/// The file with the allocator of a process that cannot load the library: its executable if that is linked statically, or musl's C
/// library. `None` if the process has another loader.
pub(super) fn site(pid: Pid) -> Result<Option<Site>> {
    let executable = Site::executable(pid)?;
    let elf = Elf::read(&executable.file).map_err(|e| anyhow!("its executable: {e}"))?;
    if elf.interpreter().is_none() {
        return Ok(Some(executable));
    }
    let files = Files::read(pid)?;
    let Some(musl) = files.musl() else {
        return Ok(None);
    };
    if let Some(name) = files.other_allocator() {
        bail!(
            "its C library is musl, which does not load a library like this one into a running process, and its allocator is another \
             one, {name}; `memprof --heap -- COMMAND` starts a command with the library",
        );
    }
    let has_own = allocators::own_allocator(&executable.file).is_some();
    Ok(Some(if has_own { executable } else { musl }))
}

/// Plans the detours. Refuses a program that has none: nothing else could see its allocations.
pub(super) fn plan_detours(pid: Pid, site: &Site) -> Result<Detours> {
    let detours = site.plan(pid, ThreadStates::Table)?;
    if detours.all.is_empty() {
        bail!(
            "it is linked statically, or was started by naming the loader, so that it loads no library, and {}; use `memprof \
             --heap=exact --duration 10 --pid {pid}`, which counts every call, or `memprof heap --pid {pid}`; nothing was done",
            printable(&no_function(&detours))
        );
    }
    Ok(detours)
}

/// Maps the library, and writes the jumps. Returns the text for the user.
pub(super) fn attach(config: &AttachConfig, pid: Pid, name: &str, site: &Site) -> Result<Vec<u8>> {
    let options = Options {
        interval: config.interval,
        ..Options::default()
    };
    let detours = plan_detours(pid, site)?;
    let image = Image::for_running(&options, &detours)?;
    let mut library = File::from(memfd_create(c"memprof", MFdFlags::MFD_CLOEXEC)?);
    library.write_all(&image.bytes)?;
    let jumps = Jumps::new(pid, site.bias, &detours).map_err(|e| anyhow!(e))?;
    let by = Loader::prepare_with_room(pid, site.room()).map_err(|e| anyhow!(e))?;
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
        bias: site.bias,
    };
    let redirected = jumps.write_within(config.wait, Some(&by), |process| placement.place(process));
    let redirected = redirected.map_err(|why| anyhow!("{why}"))?;
    Ok(without_loader(pid, name, redirected, begun.elapsed()).into_bytes())
}
