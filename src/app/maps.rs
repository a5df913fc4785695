//! The `memprof maps` command.

use anyhow::{Context, Result, anyhow};

use crate::app::config::{MapsConfig, TableFormat};
use memprof_sys::breakdown::measure;
use memprof_sys::process::Presence;

/// Returns the output of `memprof maps`.
///
/// # Errors
/// No process matches, several match, or permissions are missing; the message says what to do.
pub fn run(config: &MapsConfig) -> Result<Vec<u8>> {
    let pid = config.target.process()?;
    let failed = || format!("cannot break down the memory of process {pid}");
    if let Some(why) = Presence::look_up(pid).refusal(pid) {
        return Err(anyhow!(why)).with_context(failed);
    }
    let breakdown = measure(pid, config.show).with_context(failed)?;
    let mut out = Vec::new();
    match config.format {
        TableFormat::Text => breakdown.write_text(&mut out)?,
        TableFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &breakdown)?;
            out.push(b'\n');
        }
    }
    Ok(out)
}
