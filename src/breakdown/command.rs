//! `memprof maps`.

use anyhow::{Context, Result, anyhow, bail};

use super::measure;
use crate::config::{MapsConfig, MapsFormat, MapsTarget};
use crate::event::Pid;
use crate::target::{self, Presence};

/// Returns the output of `memprof maps`.
///
/// # Errors
/// No process matches, several match, or permissions are missing; the message says what to do.
pub fn run(config: &MapsConfig) -> Result<Vec<u8>> {
    let pid = process(&config.target)?;
    let failed = || format!("cannot break down the memory of process {pid}");
    if let Some(why) = Presence::of(pid).refusal(pid) {
        return Err(anyhow!(why)).with_context(failed);
    }
    let breakdown = measure(pid, config.show).with_context(failed)?;
    let mut out = Vec::new();
    match config.format {
        MapsFormat::Text => breakdown.write_text(&mut out)?,
        MapsFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &breakdown)?;
            out.push(b'\n');
        }
    }
    Ok(out)
}

fn process(target: &MapsTarget) -> Result<Pid> {
    match target {
        MapsTarget::Pid(pid) => Ok(*pid),
        MapsTarget::Comm(name) => match target::find(name, false)? {
            Some(found) => Ok(found.pid),
            None => bail!("no process is named {name}; `ps -e` lists the names of all processes"),
        },
    }
}
