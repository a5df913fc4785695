//! `memprof heap`.

use std::time::SystemTime;

use anyhow::{Context, Result, anyhow};

use super::ledger::measure_exiting;
use super::{Heap, measure};
use crate::api::HeapSnapshot;
use crate::config::{HeapConfig, HeapFormat, HeapTarget};
use crate::event::Pid;
use crate::export::write_heap_html;
use crate::session::held::{self, Moment};
use crate::target::Presence;

/// Returns the output of `memprof heap`, and its exit status: that of a command which has ended.
///
/// # Errors
/// No process matches, several match, permissions are missing, the process could not be stopped, or the command could
/// not be run; the message says what to do.
pub fn run(config: &HeapConfig) -> Result<(Vec<u8>, u8)> {
    let (heap, status) = match &config.target {
        HeapTarget::Process(target) => (running(target.process()?, config)?, None),
        HeapTarget::Command(argv, at) => held::run(argv, *at, |pid, moment| match moment {
            Moment::Running => running(pid, config),
            Moment::Exiting(thread, registers) => {
                measure_exiting(pid, thread, registers, config.top).with_context(|| failed(pid))
            }
        })?,
    };
    let mut out = Vec::new();
    match config.format {
        HeapFormat::Text => heap.write_text(&mut out, config.top)?,
        HeapFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &heap)?;
            out.push(b'\n');
        }
        HeapFormat::Html => {
            let taken = SystemTime::now();
            write_heap_html(
                &HeapSnapshot {
                    heap,
                    taken,
                    grown_by: None,
                    by_stack: None,
                },
                &mut out,
            )?;
        }
    }
    Ok((out, status.unwrap_or(0)))
}

fn failed(pid: Pid) -> String {
    format!("cannot take a heap snapshot of process {pid}")
}

fn running(pid: Pid, config: &HeapConfig) -> Result<Heap> {
    if let Some(why) = Presence::of(pid).refusal(pid) {
        return Err(anyhow!(why)).with_context(|| failed(pid));
    }
    measure(pid, &config.snapshot, config.top).with_context(|| failed(pid))
}
