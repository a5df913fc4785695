//! Detours in a process that has loaded the library without a plan of them: a program that a command of memprof has executed later, or
//! one whose library an older attachment has loaded.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use super::command::plan_detours;
use super::detours::{Jumps, Redirected, Site};
use crate::sampler::words::{MappedLibrary, bytes_after_code, put};
use crate::sampler::{DetoursState, detours_placed, mapped_library};
use memprof_code::allocators::Detours;
use memprof_sys::freeze::{Loader, StillProcess};
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};

const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXEC: u64 = libc::PROT_EXEC as u64;
const MAP: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
const NO_FILE: u64 = u64::MAX;

/// Whether a process has the library, and its executable an allocator whose functions do not lead to it and can have detours.
///
/// # Errors
/// The process cannot be read, or its executable's allocator cannot have detours.
pub(super) fn is_missing(pid: Pid) -> Result<bool> {
    let placed = detours_placed(pid).map(|placed| placed.state);
    let none = matches!(placed, Some(DetoursState::None | DetoursState::Other));
    Ok(none && mapped_library(pid).is_some() && !plan_detours(pid)?.all.is_empty())
}

/// Adds the detours. Returns the text for the user.
///
/// # Errors
/// There was no safe moment, or the process does not permit it.
pub(super) fn add(pid: Pid, name: &str, patience: Duration) -> Result<Vec<u8>> {
    let begun = Instant::now();
    let detours = plan_detours(pid)?;
    let Some((library, state)) = mapped_library(pid) else {
        bail!("the library that it has is another release's");
    };
    let bias = Site::executable(pid)?.bias;
    let jumps = Jumps::new(pid, bias, &detours).map_err(|e| anyhow!(e))?;
    let by = Loader::prepare(pid).map_err(|e| anyhow!(e))?;
    privileges::reduce(ThreadRole::Attach);
    let added = Added {
        library,
        detours: &detours,
        bias,
        state,
    };
    let redirected = jumps.write_within(patience, Some(&by), |process| added.prepare(process));
    let Redirected {
        functions, held, ..
    } = redirected.map_err(|why| anyhow!(why))?;
    Ok(super::report::added(pid, name, functions, held, begun.elapsed()).into_bytes())
}

struct Added<'a> {
    library: MappedLibrary,
    detours: &'a Detours,
    /// The executable's load bias.
    bias: u64,
    /// Address of what the library says of its detours.
    state: u64,
}

impl Added<'_> {
    /// Maps and fills the code of the detours. Nothing leads to it yet. If memprof is killed, it stays.
    fn prepare(&self, process: &mut dyn StillProcess) -> Result<u64, String> {
        let code = self.bias.wrapping_add_signed(self.detours.near);
        let bytes = self.detours.code.len() as u64;
        let all = bytes + bytes_after_code(self.detours);
        let at = process.call(libc::SYS_mmap, [code, all, READ | WRITE, MAP, NO_FILE, 0])?;
        let filled = match at == code {
            true => self.fill(process, code),
            // Before Linux 4.17 (commit a4ff8e8620d3), the kernel takes the address for a wish.
            false => Err("other memory is where the code of the detours belongs".into()),
        };
        let still = filled.and_then(|()| match process.is_still() {
            true => self.tell(process),
            false => Err("a system call took so long that its other threads had to go on".into()),
        });
        if still.is_err() {
            let _ = process.call(libc::SYS_munmap, [at, all, 0, 0, 0, 0]);
        }
        still.map(|()| self.state)
    }

    /// Has the library say that the code is there.
    fn tell(&self, process: &mut dyn StillProcess) -> Result<(), String> {
        let count = self.detours.all.len() as u64;
        put(
            process,
            self.state,
            &[DetoursState::PREPARED, count, 0, self.bias],
        )
    }

    fn fill(&self, process: &mut dyn StillProcess, code: u64) -> Result<(), String> {
        let written = process.write(code, &self.detours.code);
        written.map_err(|e| format!("the code of the detours cannot be written: {e}"))?;
        let bytes = self.detours.code.len() as u64;
        // Never writable and executable at once.
        process.call(libc::SYS_mprotect, [code, bytes, READ | EXEC, 0, 0, 0])?;
        self.library.put_words(process, code, self.detours)
    }
}
