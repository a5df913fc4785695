//! Makes the functions of an allocator inside the executable of a running process lead to the library that it has loaded.
//!
//! The library has put the code of the detours in place (`sampler/detours.c`), which nothing uses yet. What is left is to write the
//! jumps, each at once, while all threads are stopped and none is between the instructions that a jump displaces. If memprof is
//! killed, the process goes on with the jumps that were written: each works without the others.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::sampler::{DetoursPlaced, DetoursState};
use memprof_code::allocators::{self, Detours, JUMP, ThreadStates};
use memprof_code::elf::Elf;
use memprof_sys::freeze::{
    HoldError, Loader, Registers, StillProcess, StoppedProcess, not_traceable,
};
use memprof_sys::ids::{Addr, Pid};
use memprof_sys::proc_dir;
use memprof_sys::procfs::Auxv;
use memprof_sys::residency::{Vma, proc_maps};
use memprof_sys::target_file::TargetFile;

/// Maximum time for which all threads are stopped.
const MAX_STOP: Duration = Duration::from_millis(50);
/// Maximum number of attempts to map the library.
const ATTEMPTS: u32 = 4;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Distance that is kept from other memory, in bytes, and from which on a jump does not reach.
const GAP: u64 = 64 << 10;
const REACH: u64 = 1 << 30;
/// Distance from the end of a large hole, in bytes.
const INSIDE: u64 = 256 << 20;
/// Lowest address that programs may use, in bytes.
const LOWEST: u64 = 64 << 10;
/// Bytes below a stack pointer that functions use, and maximum number of bytes of a stack that are read.
const RED_ZONE: u64 = 128;
const MAX_STACK: u64 = 8 << 20;

/// Detours that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redirected {
    /// Functions that lead to the library.
    pub functions: usize,
    /// Functions that cannot be changed.
    pub left_out: usize,
    /// How long all threads were stopped.
    pub held: Duration,
}

/// A file in a process whose functions get detours.
pub(crate) struct Site {
    pub file: TargetFile,
    /// The file's load bias: its addresses in the process minus those in the file.
    pub bias: u64,
}

impl Site {
    /// The executable of a process.
    ///
    /// # Errors
    /// The process is gone, or its executable cannot be read.
    pub(crate) fn executable(pid: Pid) -> Result<Site> {
        let file = TargetFile::at_link(Path::new(&proc_dir::path(pid, "exe")))?;
        let elf = Elf::read(&file).map_err(|e| anyhow!("its executable: {e}"))?;
        let entry = Auxv::for_process(pid)?.get(libc::AT_ENTRY);
        let bias = entry.zip(elf.entry());
        let bias = bias.map(|(here, in_file)| here.wrapping_sub(in_file));
        Ok(Site {
            bias: bias.context(
                "it was started by naming the dynamic loader, which loads no further library in such a program",
            )?,
            file,
        })
    }

    /// Plans the detours, in memory that the process does not use.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn plan(&self, pid: Pid, threads: ThreadStates) -> Result<Detours> {
        let vmas = proc_maps::parse(&proc_dir::read(pid, "maps")?)?;
        let near = |addresses: Range<u64>, size: u64| {
            let start = addresses.start.wrapping_add(self.bias);
            let at = hole(&vmas, start, size)?;
            Some(at.wrapping_sub(self.bias).cast_signed())
        };
        Detours::plan(&self.file, threads, near).map_err(|e| anyhow!("its code: {e}"))
    }

    /// Room for the code that system calls need, if the process lacks it.
    pub(crate) fn room(&self) -> Option<u64> {
        let at = allocators::unused_code(&self.file, Loader::ROOM)?;
        Some(self.bias.wrapping_add(at))
    }
}

/// Unused memory that jumps reach from `start`. A large hole is best, which the kernel does not fill soon, and there a place far from
/// its end, where the kernel maps new memory. Otherwise the end of a hole is taken, because heaps grow at its beginning: one before
/// `start`, or else the nearest one after it.
fn hole(vmas: &[Vma], start: u64, size: u64) -> Option<u64> {
    let ends = vmas.iter().map(|vma| vma.start.0);
    let begins = std::iter::once(LOWEST).chain(vmas.iter().map(|vma| vma.end.0));
    let places = begins.zip(ends).filter_map(|(from, end)| {
        let is_large = end.saturating_sub(from) > 2 * INSIDE;
        let distance = if is_large { INSIDE } else { GAP };
        let at = end.checked_sub(distance + size)? & !0xfff;
        let fits = at >= from.saturating_add(GAP) && at.abs_diff(start) < REACH;
        fits.then_some((!is_large, at > start, at.abs_diff(start), at))
    });
    places.min().map(|(.., at)| at)
}

/// Writes the jumps of a process whose library has been loaded at a moment at which that is safe. `None` if there is nothing to
/// redirect; the error says why nothing was. `state` is the address of the library's word that says whether the jumps are written.
pub(super) fn redirect(
    pid: Pid,
    memory: &File,
    detours: &Detours,
    placed: &DetoursPlaced,
    state: u64,
    patience: Duration,
) -> Option<Result<Redirected, String>> {
    let jumps = || {
        Ok(Jumps {
            pid,
            memory: memory.try_clone().map_err(|e| e.to_string())?,
            detours,
            bias: placed.base,
        })
    };
    match placed.state {
        DetoursState::None => None,
        DetoursState::Prepared => {
            Some(jumps().and_then(|jumps| jumps.write_within(patience, None, |_| Ok(state))))
        }
        DetoursState::Other | DetoursState::Placed => {
            Some(Err("its functions have been changed already".into()))
        }
        DetoursState::Failed(..) => placed.state.failure().map(Err),
    }
}

/// The jumps of a process.
pub(crate) struct Jumps<'a> {
    pid: Pid,
    memory: File,
    detours: &'a Detours,
    /// The load bias of the file with the functions.
    bias: u64,
}

impl Jumps<'_> {
    /// The jumps of a process in which none is written yet.
    ///
    /// # Errors
    /// The process is gone, or its memory cannot be read.
    pub(crate) fn new<'a>(pid: Pid, bias: u64, detours: &'a Detours) -> Result<Jumps<'a>, String> {
        let memory = proc_dir::open(pid, "mem");
        Ok(Jumps {
            pid,
            memory: memory.map_err(|e| format!("{}: {e}", proc_dir::shown(pid, "mem")))?,
            detours,
            bias,
        })
    }

    /// Writes all jumps at a moment at which that is safe. `prepare` does what must come before them, with system calls if the
    /// process is prepared for them (`by`), and returns the address of the word that says whether they are written.
    pub(super) fn write_within(
        &self,
        patience: Duration,
        by: Option<&Loader>,
        mut prepare: impl FnMut(&mut StoppedProcess<'_>) -> Result<u64, String>,
    ) -> Result<Redirected, String> {
        let begun = Instant::now();
        let mut attempts = 0;
        loop {
            // Read while the threads run: a process may have very many mappings.
            let maps = proc_dir::read(self.pid, "maps").map_err(|e| e.to_string())?;
            let vmas = proc_maps::parse(&maps).map_err(|e| format!("{e:#}"))?;
            let why = match StoppedProcess::stop(self.pid, MAX_STOP, by) {
                Ok(mut stopped) => match self.check(&stopped.registers(), &vmas) {
                    Ok(()) => match prepare(&mut stopped) {
                        Ok(state) => {
                            self.write(&stopped, state)?;
                            return Ok(Redirected {
                                functions: self.detours.all.len(),
                                left_out: self.detours.refused.len(),
                                held: stopped.release(),
                            });
                        }
                        // On a busy machine, a call may take too long.
                        Err(why) => {
                            attempts += 1;
                            if attempts == ATTEMPTS {
                                return Err(why);
                            }
                            why
                        }
                    },
                    Err(why) => why,
                },
                Err(HoldError::Missed(why)) => why,
                Err(HoldError::Blocked(why)) => return Err(why),
                Err(HoldError::Refused(e)) => {
                    return Err(not_traceable(self.pid.0.cast_signed(), &e));
                }
            };
            if begun.elapsed() >= patience {
                return Err(why);
            }
            sleep(PAUSE);
        }
    }

    /// Checks that no thread is between displaced instructions, and that no signal handler returns there. The error says which
    /// one is.
    fn check(&self, threads: &[Registers], vmas: &[Vma]) -> Result<(), String> {
        let ranges = self.detours.all.iter().map(|detour| {
            let at = self.bias.wrapping_add(detour.address);
            let inside = at + 1..at + detour.displaced.len() as u64;
            (inside, detour.name.as_str())
        });
        let mut ranges: Vec<(Range<u64>, &str)> = ranges.collect();
        ranges.sort_by_key(|(range, _)| range.start);
        let find = |address: u64| {
            let next = ranges.partition_point(|(range, _)| range.start <= address);
            let (range, name) = ranges.get(next.checked_sub(1)?)?;
            range.contains(&address).then_some(*name)
        };
        for thread in threads {
            let tid = thread.tid;
            let at = thread.instruction_pointer();
            let at = at.ok_or_else(|| format!("thread {tid} was killed"))?;
            let mut on = vmas.iter();
            let stack = on.find(|vma| vma.contains(Addr(thread.stack_pointer)));
            let stack = stack.ok_or_else(|| format!("thread {tid} has a new stack"))?;
            let from = thread
                .stack_pointer
                .wrapping_sub(RED_ZONE)
                .max(stack.start.0);
            let end = stack.end.0.min(from.saturating_add(MAX_STACK));
            let mut bytes = vec![0; end.saturating_sub(from) as usize];
            let read = self.memory.read_at(&mut bytes, from);
            let read = read.map_err(|e| format!("the stack of thread {tid}: {e}"))?;
            let (words, _) = bytes[..read].as_chunks::<8>();
            let on_stack = words
                .iter()
                .find_map(|word| find(u64::from_ne_bytes(*word)));
            if let Some(name) = find(at).or(on_stack) {
                return Err(format!("thread {tid} is at the beginning of `{name}`"));
            }
        }
        Ok(())
    }

    /// Writes all jumps.
    ///
    /// # Errors
    /// The reason why one is not written; the earlier ones are.
    pub(crate) fn write(&self, process: &dyn StillProcess, state: u64) -> Result<(), String> {
        for (number, detour) in self.detours.all.iter().enumerate() {
            let at = self.bias.wrapping_add(detour.address);
            let failed = |e| format!("the kernel does not let `{}` be changed: {e}", detour.name);
            let mut bytes = [0; 8];
            self.memory.read_exact_at(&mut bytes, at).map_err(failed)?;
            let jump = self.detours.jump(number);
            let jump = jump.ok_or("the executable is too large")?;
            if bytes[..JUMP] != detour.displaced[..JUMP] {
                return Err(format!("`{}` has been changed meanwhile", detour.name));
            }
            bytes[..JUMP].copy_from_slice(&jump);
            process.write(at, &bytes).map_err(failed)?;
        }
        let placed = DetoursState::PLACED.to_ne_bytes();
        process
            .write(state, &placed)
            .map_err(|e| format!("the library cannot be told: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hole_before_the_executable_is_preferred() {
        let maps = "\
            10000000-10001000 r--p 00000000 00:00 0 \n\
            20000000-20100000 r-xp 00000000 00:00 0 \n\
            20200000-20300000 rw-p 00000000 00:00 0 \n\
            7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n";
        let vmas = proc_maps::parse(maps.as_bytes()).unwrap();
        assert_eq!(
            hole(&vmas, 0x2000_0000, 0x2000),
            Some(0x2000_0000 - GAP - 0x2000)
        );
        // Without room before it, the nearest one after it.
        let maps = "\
            00010000-20000000 r--p 00000000 00:00 0 \n\
            20000000-20100000 r-xp 00000000 00:00 0 \n\
            20200000-20300000 rw-p 00000000 00:00 0 \n\
            7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n";
        let vmas = proc_maps::parse(maps.as_bytes()).unwrap();
        assert_eq!(
            hole(&vmas, 0x2000_0000, 0x2000),
            Some(0x2020_0000 - GAP - 0x2000)
        );
        assert_eq!(hole(&vmas, 0x2000_0000, 1 << 31), None);
    }
}
