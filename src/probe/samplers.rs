//! Attaching BPF programs to the probes of samplers, and to the probe by which programs set marks.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::skel::Skel;
use libbpf_rs::{Link, MapCore, MapFlags, UprobeOpts};

use super::Probe;
use crate::probe::source::samples::{ALLOCATION, FREE, MARK};
use crate::probe::wire::{self, SAMPLE_ARGUMENTS, SAMPLE_PROBES, argument_place, sample_probe};
use memprof_code::usdt::{Argument, ArgumentLocation, Usdt};

/// The names of the probes, the programs for them, and the number of their arguments.
const PROBES: [(&str, &str, usize); 3] = [
    ("alloc", ALLOCATION, 3),
    ("free", FREE, 1),
    (MARKS.1, MARK, 1),
];

/// Provider and name of the probe by which a program sets marks. Its argument is the address of a name.
const MARKS: (&str, &str) = ("memprof", "mark");

/// Whether this is the probe by which a program sets marks.
pub(crate) fn sets_marks(provider: &str, name: &str) -> bool {
    (provider, name) == MARKS
}

/// Whether a probe of this name is a sampler's.
pub(crate) fn is_sampler_probe(name: &str) -> bool {
    let mut known = PROBES.iter().filter(|(known, ..)| *known != MARKS.1);
    known.any(|(known, ..)| *known == name)
}

impl Probe {
    /// Attaches to `probes` in the process of one thread, or in all processes that map the file. The hooks end when the links are
    /// dropped. They also end with that thread, because the kernel finds the process's memory by it.
    ///
    /// # Errors
    /// A probe's arguments differ from those of a sampler, or the kernel refuses.
    pub fn listen(
        &mut self,
        thread: Option<i32>,
        file: &impl AsRawFd,
        probes: &[Usdt],
    ) -> Result<Vec<Link>> {
        // Frees first: a sampler may not track its samples while nothing is attached to its free probe.
        let is_free = |probe: &&Usdt| probe.arguments.as_ref().is_ok_and(|all| all.len() == 1);
        let (frees, rest): (Vec<&Usdt>, Vec<&Usdt>) = probes.iter().partition(is_free);
        let all = frees.into_iter().chain(rest);
        all.map(|probe| self.listen_to(thread, file, probe))
            .collect()
    }

    fn listen_to(
        &mut self,
        thread: Option<i32>,
        file: &impl AsRawFd,
        probe: &Usdt,
    ) -> Result<Link> {
        let what = || format!("the probe {}:{}", probe.provider, probe.name);
        let known = PROBES.iter().find(|(name, ..)| *name == probe.name);
        let Some((_, program, arguments)) = known else {
            bail!("memprof does not listen to {}", what());
        };
        let found = match &probe.arguments {
            Ok(found) if found.len() == *arguments => found,
            Ok(found) => bail!(
                "{} has {} arguments, not {arguments}: it does not follow the contract of OpenTelemetry's profiler",
                what(),
                found.len()
            ),
            Err(text) => bail!(
                "memprof does not understand where {} has its arguments: {text:?}",
                what()
            ),
        };
        let Some(semaphore) = probe.semaphore else {
            bail!(
                "{} has its semaphore outside of its file, where the kernel cannot count listeners",
                what()
            );
        };
        let cookie = self.cookie_of(found)?;
        let program = self
            .skel
            .object()
            .progs_mut()
            .find(|p| p.name() == *program)
            .ok_or_else(|| anyhow!("memprof has no BPF program {program}"))?;
        // A path that leads to this very file, whatever its name in the process's file tree.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let options = UprobeOpts {
            ref_ctr_offset: semaphore as usize,
            cookie,
            ..UprobeOpts::default()
        };
        program
            .attach_uprobe_with_opts(thread.unwrap_or(-1), path, probe.offset as usize, options)
            .with_context(|| format!("cannot listen to {}", what()))
    }

    /// The cookie that the probe's links pass to the program: the index of its argument locations in the map.
    fn cookie_of(&mut self, arguments: &[Argument]) -> Result<u64> {
        let mut record = sample_probe::default();
        for (to, from) in record.argument.iter_mut().zip(arguments) {
            *to = argument(from);
        }
        let record = wire::record_bytes(&record);
        let known = self.sample_probes.iter().position(|bytes| bytes == record);
        let cookie = known.unwrap_or(self.sample_probes.len());
        if known.is_none() {
            if cookie >= SAMPLE_PROBES {
                bail!("the probes of samplers have their arguments in too many places");
            }
            let key = (cookie as u32).to_ne_bytes();
            let maps = &self.skel.maps;
            maps.sample_probes
                .update(&key, record, MapFlags::ANY)
                .context("cannot write the BPF map of samplers' probes")?;
            self.sample_probes.push(record.to_vec());
        }
        Ok(cookie as u64)
    }
}

fn argument(argument: &Argument) -> wire::probe_argument {
    let (place, reg, value) = match argument.place {
        ArgumentLocation::Constant(value) => (argument_place::ARGUMENT_CONSTANT, 0, value),
        ArgumentLocation::Register(reg) => (argument_place::ARGUMENT_REGISTER, reg, 0),
        ArgumentLocation::Memory(reg, offset) => (argument_place::ARGUMENT_MEMORY, reg, offset),
    };
    wire::probe_argument {
        place: place.0 as u8,
        bits: argument.bits,
        is_signed: argument.signed.into(),
        reg,
        value: value.cast_unsigned(),
        ..Default::default()
    }
}

const _: () = assert!(SAMPLE_ARGUMENTS == 3);
