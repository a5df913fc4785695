//! The `memprof heap` command.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;

use crate::app::config::{ByStackConfig, Config, HeapConfig, HeapFormat, HeapSampling, HeapTarget};
use crate::app::session::{by_stack, command_snapshot};
use crate::http::write_heap_html;
use memprof_heap::{
    At, ByStack, GrownBy, Heap, HeapOptions, HeapSnapshot, Moment, measure, measure_and_save,
    measure_core, measure_exiting,
};
use memprof_profile::measure::TEMPORARY;
use memprof_sys::ids::Pid;
use memprof_sys::process::{Presence, Selector};

/// Returns the output of `memprof heap` and its exit status: the command's status if the command has ended.
///
/// # Errors
/// No process matches, several match, permissions are missing, the process could not be stopped, or the command could not
/// run; the message says what to do.
pub fn run(config: &HeapConfig) -> Result<(Vec<u8>, u8)> {
    let (taken, status) = match &config.by_stack {
        Some(sampling) => with_stacks(config, sampling)?,
        None => {
            let (heap, status) = without_stacks(config)?;
            let taken = HeapSnapshot {
                heap,
                taken: SystemTime::now(),
                grown_by: None,
                zero_by: None,
                by_stack: None,
            };
            (Arc::new(taken), status)
        }
    };
    let mut out = Vec::new();
    match (config.format, &taken.by_stack) {
        (HeapFormat::Text, by_stack) => {
            taken
                .heap
                .write_text(&mut out, config.top, config.details)?;
            if let Some(by_stack) = by_stack {
                by_stack.write_text(&mut out, config.top)?;
            }
            if let Some(zero_by) = &taken.zero_by {
                zero_by.write_zeroes(&mut out, config.top)?;
            }
        }
        (HeapFormat::Json, by_stack) => {
            let whole = Whole {
                verdict: taken.heap.verdict(),
                heap: &taken.heap,
                grown_by: taken.grown_by.as_ref(),
                zero_by: taken.zero_by.as_ref(),
                by_stack: by_stack.as_ref(),
            };
            serde_json::to_writer_pretty(&mut out, &whole)?;
            out.push(b'\n');
        }
        (HeapFormat::Html, _) => write_heap_html(&taken, &mut out)?,
    }
    Ok((out, status.unwrap_or(0)))
}

/// A snapshot's JSON.
#[derive(Serialize)]
struct Whole<'a> {
    /// What the snapshot says, in sentences.
    verdict: Vec<String>,
    #[serde(flatten)]
    heap: &'a Heap,
    #[serde(skip_serializing_if = "Option::is_none")]
    grown_by: Option<&'a GrownBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zero_by: Option<&'a GrownBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_stack: Option<&'a ByStack>,
}

fn without_stacks(config: &HeapConfig) -> Result<(Heap, Option<u8>)> {
    match &config.target {
        HeapTarget::Process(target) => Ok((running(target.process()?, config)?, None)),
        HeapTarget::Core(core, paths) => Ok((measure_core(core, paths, config.top)?, None)),
        HeapTarget::Command(argv, at) => {
            command_snapshot::run(argv, *at, |pid, moment| match moment {
                Moment::Running => running(pid, config),
                Moment::Exiting(registers) => {
                    let none = &mut |_| None;
                    let measured = measure_exiting(pid, registers, config.top, none);
                    Ok(measured.with_context(|| failed(pid))?.heap)
                }
            })
        }
    }
}

fn with_stacks(
    config: &HeapConfig,
    sampling: &ByStackConfig,
) -> Result<(Arc<HeapSnapshot>, Option<u8>)> {
    let (target, at) = match &config.target {
        HeapTarget::Process(target) => (
            Selector::Pid(target.process()?),
            At::After(sampling.sampled_for),
        ),
        HeapTarget::Command(argv, at) => (Selector::Command(argv.clone()), *at),
        HeapTarget::Core(..) => return Err(anyhow!("a core has no stacks of allocations")),
    };
    let heap = HeapSampling {
        interval: sampling.interval,
        providers: sampling.providers.clone(),
        exact: None,
        temporary: TEMPORARY,
        sizes: None,
        filter: None,
        inlined: sampling.inlined,
    };
    let how = HeapOptions {
        approach: config.snapshot.approach,
        max_stop: Some(config.snapshot.max_stop),
        top: config.top,
        stacks: config.top,
        limit: config.snapshot.limit,
        grown_by: true,
    };
    by_stack::take(&Config::for_heap(target, heap), at, how)
}

fn failed(pid: Pid) -> String {
    format!("cannot take a heap snapshot of process {pid}")
}

fn running(pid: Pid, config: &HeapConfig) -> Result<Heap> {
    if let Some(why) = Presence::look_up(pid).refusal(pid) {
        return Err(anyhow!(why)).with_context(|| failed(pid));
    }
    let measured = match &config.save {
        Some(path) => measure_and_save(pid, &config.snapshot, config.top, path),
        None => measure(pid, &config.snapshot, config.top),
    };
    measured.with_context(|| failed(pid))
}
