//! `memprof heap`.

use std::time::SystemTime;

use anyhow::{Context, Result, anyhow};

use super::measure;
use crate::api::HeapSnapshot;
use crate::config::{HeapConfig, HeapFormat};
use crate::export::write_heap_html;
use crate::target::Presence;

/// Returns the output of `memprof heap`.
///
/// # Errors
/// No process matches, several match, permissions are missing, or the process could not be stopped; the message says
/// what to do.
pub fn run(config: &HeapConfig) -> Result<Vec<u8>> {
    let pid = config.target.process()?;
    let failed = || format!("cannot take a heap snapshot of process {pid}");
    if let Some(why) = Presence::of(pid).refusal(pid) {
        return Err(anyhow!(why)).with_context(failed);
    }
    let heap = measure(pid, &config.snapshot, config.top).with_context(failed)?;
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
                },
                &mut out,
            )?;
        }
    }
    Ok(out)
}
