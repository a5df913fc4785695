//! `memprof growth`: what grew over a recorded span, or what grows in a process.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};

use super::saved_sessions::GATE_FIRED;
use crate::app::config::{GrowthConfig, ShownGrowth, TableFormat};
use crate::export::growth::GrowthTable;
use memprof_recording::{At, Recording, cut_off};
use memprof_sys::messages;
use memprof_sys::text::printable;

/// Writes what grew in a recording, and checks gates.
///
/// # Errors
/// The file is not a recording or is too short, or the table cannot be written.
pub fn growth(config: &GrowthConfig) -> Result<ExitCode> {
    let path = config.file.display();
    let named = cut_off(&config.file).map_err(|why| anyhow!("cannot open {path}: {why}"))?;
    let (file, end) = named.unwrap_or_else(|| (config.file.clone(), At::End));
    let cannot = || format!("cannot tell what grew in the recording {path}");
    let recording = Recording::open(&file).with_context(cannot)?;
    let remedy = "record for longer, or name an earlier --since";
    let since = config.since.as_ref();
    let table = table(&recording, (since, &end), &config.shown, remedy).with_context(cannot)?;
    show(&recording, &table, &config.shown).map(|fired| match fired {
        true => ExitCode::from(GATE_FIRED),
        false => ExitCode::SUCCESS,
    })
}

/// Writes what grew since a session began, and checks gates; returns whether one fires.
///
/// # Errors
/// As for [`growth`].
pub(super) fn of_session(recording: &Recording, shown: &ShownGrowth) -> Result<bool> {
    let remedy = "watch the process for longer with --duration; one that does nothing has none";
    let table = table(recording, (None, &At::End), shown, remedy);
    show(recording, &table.context("cannot tell what grows")?, shown)
}

fn table(
    recording: &Recording,
    (since, end): (Option<&At>, &At),
    shown: &ShownGrowth,
    remedy: &str,
) -> Result<GrowthTable> {
    let (from, to) = (recording.begin(since)?, recording.find(end)?);
    if from.id > to.id {
        bail!(
            "the span ends at {}, before it begins at {}",
            recording.time(&to)?,
            recording.time(&from)?
        );
    }
    let table = GrowthTable::between(recording, [from, to], shown.by, shown.kind)?;
    if table.total.is_none() {
        bail!("it is too short: a trend needs at least ten moments; {remedy}");
    }
    Ok(table)
}

/// Writes a table, and prints the gates that fire; returns whether one does.
fn show(recording: &Recording, table: &GrowthTable, shown: &ShownGrowth) -> Result<bool> {
    let mut text = Vec::new();
    match shown.format {
        TableFormat::Text => {
            let time = |unix_ms| recording.time_of(unix_ms).unwrap_or_default();
            table.write_text(shown.limit, time, &mut text)?;
        }
        TableFormat::Json => {
            serde_json::to_writer_pretty(&mut text, table)?;
            text.push(b'\n');
        }
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&text)
        .and_then(|()| out.flush())
        .context("cannot write to stdout")?;
    let mut fired = false;
    for gate in &shown.gates {
        if let Some(rate) = gate.exceeded_by(table) {
            let text = printable(&gate.text);
            let kib = rate / 1024.0;
            messages::print(&format!("gate fired: {text}: certainly {kib:.0} KiB/h"));
            fired = true;
        }
    }
    Ok(fired)
}
