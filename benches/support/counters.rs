//! A running memprof's BPF objects, read from outside: its counters and the memory of its maps.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;

use anyhow::{Context, Result};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{DataSec, Var};
use libbpf_rs::{MapCore, MapFlags, MapHandle, num_possible_cpus};

/// Processors that the probe counts apart (`MAX_CPUS` in `memprof.h`).
const MAX_CPUS: usize = 1024;

/// The description of one of memprof's descriptors in `/proc/PID/fdinfo`.
struct FdInfo(String);

impl FdInfo {
    fn all(pid: u32) -> Result<Vec<FdInfo>> {
        let dir = format!("/proc/{pid}/fdinfo");
        let entries = fs::read_dir(&dir).with_context(|| format!("cannot list {dir}"))?;
        // Ignore descriptors that were closed meanwhile.
        Ok(entries
            .filter_map(|e| fs::read_to_string(e.ok()?.path()).ok())
            .map(FdInfo)
            .collect())
    }

    fn number(&self, key: &str) -> Option<u64> {
        let value = self.0.lines().find_map(|l| l.strip_prefix(key));
        value?.strip_prefix(':')?.trim().parse().ok()
    }
}

/// Resident memory of a process in bytes: anonymous, file and shared.
pub fn held(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/statm");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let pages: u64 = text
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .with_context(|| format!("{path} has no second number"))?;
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    Ok(pages * page)
}

/// Memory of memprof's BPF maps and of its BPF programs, in bytes, as reported by the kernel.
pub fn bpf_memory(pid: u32) -> Result<(u64, u64)> {
    let all = FdInfo::all(pid)?;
    let sum = |key: &str| {
        let mut objects: Vec<(u64, u64)> = all
            .iter()
            .filter_map(|fd| Some((fd.number(key)?, fd.number("memlock")?)))
            .collect();
        objects.sort_unstable();
        objects.dedup();
        objects.iter().map(|(_, bytes)| bytes).sum()
    };
    Ok((sum("map_id"), sum("prog_id")))
}

/// The kernel's ids of the programs that memprof holds.
pub fn programs(pid: u32) -> Result<BTreeSet<u32>> {
    let ids = FdInfo::all(pid)?.into_iter();
    Ok(ids
        .filter_map(|fd| Some(fd.number("prog_id")? as u32))
        .collect())
}

/// Memory of memprof's BPF maps with these names, in bytes, as reported by the kernel. (The kernel keeps
/// 15 bytes of a name.)
pub fn map_memory(pid: u32, names: &[&str]) -> Result<u64> {
    let mut maps: Vec<(u64, u64)> = FdInfo::all(pid)?
        .iter()
        .filter_map(|fd| Some((fd.number("map_id")?, fd.number("memlock")?)))
        .filter(|(id, _)| {
            let map = MapHandle::from_map_id(*id as u32);
            map.is_ok_and(|m| names.iter().any(|n| *n == m.name().to_string_lossy()))
        })
        .collect();
    maps.sort_unstable();
    maps.dedup();
    Ok(maps.iter().map(|(_, bytes)| bytes).sum())
}

/// Kernel memory in slab objects of 4 KiB, in bytes, of the whole machine. A chunk of the page ledger takes one
/// such object: it is a little larger than 2 KiB, and `map_memory` does not count the kernel's rounding.
pub fn memory_in_pieces_of_4_kib() -> Result<u64> {
    let text = fs::read_to_string("/proc/slabinfo").context("cannot read /proc/slabinfo")?;
    let in_use = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let of_size = matches!(name, "kmalloc-4k" | "kmalloc-cg-4k");
        words.next()?.parse::<u64>().ok().filter(|_| of_size)
    };
    Ok(text.lines().filter_map(in_use).sum::<u64>() * 4096)
}

/// Page faults that a running memprof has counted.
pub struct FaultCounter {
    bss: MapHandle,
    /// Where the counters of each processor begin, and bytes of one processor's: the walked faults come first, then the others.
    offset: usize,
    size: usize,
    cpus: usize,
}

impl FaultCounter {
    /// Finds the counter in the `.bss` map of this memprof.
    pub fn open(pid: u32) -> Result<FaultCounter> {
        let all = FdInfo::all(pid)?;
        let program = all.iter().find_map(|fd| fd.number("prog_id"));
        let btf = Btf::from_prog_id(program.context("memprof holds no BPF program")? as u32)?;
        let (offset, all_bytes) = place_of(&btf, "cpus").context("the probe has no counters")?;
        let bss = all
            .iter()
            .filter_map(|fd| MapHandle::from_map_id(fd.number("map_id")? as u32).ok())
            .find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let bss = bss.context("memprof holds no .bss map")?;
        Ok(FaultCounter {
            bss,
            offset,
            size: all_bytes / MAX_CPUS,
            cpus: num_possible_cpus()?.min(MAX_CPUS),
        })
    }

    pub fn read(&self) -> Result<u64> {
        let value = self.bss.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        let value = value.as_deref().unwrap_or_default();
        let of_cpu = |cpu: usize| {
            let counters = value.get(self.offset + cpu * self.size..)?;
            let (words, _) = counters.as_chunks();
            Some(
                words
                    .iter()
                    .take(2)
                    .map(|word| u64::from_ne_bytes(*word))
                    .sum::<u64>(),
            )
        };
        let sum: Option<u64> = (0..self.cpus).map(of_cpu).sum();
        sum.context("the .bss map is short")
    }
}

/// The offset and the size of a variable in `.bss`, in bytes.
fn place_of(btf: &Btf<'_>, name: &str) -> Option<(usize, usize)> {
    let section: DataSec<'_> = btf.type_by_name(".bss")?;
    let mut vars = section.iter();
    let var = vars.find(|var| {
        let known: Option<Var<'_>> = btf.type_by_id(var.ty);
        known.is_some_and(|v| v.name() == Some(OsStr::new(name)))
    })?;
    Some((var.offset as usize, var.size))
}
