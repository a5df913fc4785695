//! `memprof open` and `memprof diff`: sessions on saved profiles, without a probe.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use tokio::sync::watch;

use super::live::Live;
use super::output;
use super::signals::Signals;
use crate::app::config::{DiffConfig, OpenConfig, Output};
use crate::http::api::{Api, ApiOptions, Opened, Provider};
use crate::http::server::{self, Listen, Listener, ServerOptions, Token};
use crate::tui;
use memprof_profile::{Report, saved};
use memprof_recording::{At, Recording, cut_off, is_recording};
use memprof_sys::messages;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::text::printable;

/// Exit status when a gate fires.
pub const GATE_FIRED: u8 = 3;

/// A saved profile, or a moment of a recording, which has others.
struct OpenedFile {
    report: Report,
    recording: Option<Recording>,
}

/// Reads a saved profile, or a moment of a recording: the last one, or that of `FILE@MOMENT`.
fn read(path: &Path) -> Result<OpenedFile> {
    let named = cut_off(path).map_err(|why| anyhow!("cannot open {}: {why}", path.display()))?;
    let (file, at) = match &named {
        Some((file, at)) => (file.as_path(), Some(at)),
        None => (path, None),
    };
    if is_recording(file).unwrap_or(false) {
        return read_recording(file, at.unwrap_or(&At::End))
            .with_context(|| format!("cannot open the recording {}", path.display()));
    }
    if at.is_some() {
        let file = file.display();
        bail!(
            "cannot open {}: only a recording has moments, and {file} is none; name a saved profile without @",
            path.display()
        );
    }
    let saved = saved::open(path);
    let saved =
        saved.with_context(|| format!("cannot open the saved profile {}", path.display()))?;
    Ok(OpenedFile {
        report: saved.into(),
        recording: None,
    })
}

fn read_recording(file: &Path, at: &At) -> Result<OpenedFile> {
    let recording = Recording::open(file)?;
    let moment = recording.find(at)?;
    let report = recording.state(moment.id)?;
    messages::print(&format!(
        "{}: the report of {}",
        file.display(),
        recording.time(&moment)?
    ));
    Ok(OpenedFile {
        report: report.into(),
        recording: Some(recording),
    })
}

/// Opens a saved profile: converts it, or serves and shows it until a signal arrives or the user quits.
///
/// # Errors
/// The file is not a saved profile, or the result cannot be written, served or shown.
pub fn open(config: OpenConfig) -> Result<ExitCode> {
    if config.screen.is_some() {
        tui::require()?;
    }
    for output in config.outputs.iter().filter(|o| !o.is_stdout()) {
        output::check(&output.path, output::OUTPUT)?;
    }
    let token = config.token_file.as_deref().map(Token::read).transpose()?;
    let listener = config.listen.as_ref().map(server::bind).transpose()?;
    let OpenedFile { report, recording } = read(&config.file)?;
    let report = Arc::new(report);
    output::all(config.outputs.iter().map(|output| {
        counted(&report, output, &config.file)?;
        output::write_profile(output, &report, output::OUTPUT)
    }))?;
    if !config.outputs.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the HTTP server's runtime")?;
    runtime.block_on(serve(
        config,
        token.map(Arc::new),
        listener,
        (report, recording),
    ))
}

/// Checks that a profile has figures of the requested kind.
fn counted(report: &Report, output: &Output, path: &Path) -> Result<()> {
    let kind = output.options.kind;
    match report.profile.counts(kind) {
        true => Ok(()),
        false => Err(anyhow!(
            "{} does not count {}: save it with {}",
            path.display(),
            kind.measure().title,
            kind.measure().option.unwrap_or_default()
        )),
    }
}

async fn serve(
    config: OpenConfig,
    token: Option<Arc<Token>>,
    listener: Option<Listener>,
    (report, recording): (Arc<Report>, Option<Recording>),
) -> Result<ExitCode> {
    let mut signals = Signals::new()?;
    privileges::reduce(ThreadRole::Server {
        writes_files: config.listen.as_ref().is_some_and(Listen::has_file),
    });
    let target = &report.profile.target;
    let (file, comm) = (config.file.display().to_string(), printable(&target.comm));
    messages::print(&format!("opened {file}: {comm} (pid {})", target.pid));
    if let Some(address) = listener.as_ref().and_then(Listener::address) {
        let lines = server::greeting(&address, config.token_file.as_deref());
        lines.iter().for_each(|line| messages::print(line));
    }
    let opened = Opened::new(file, report);
    let opened: Arc<dyn Provider> = Arc::new(match recording {
        Some(recording) => opened.with_moments(recording),
        None => opened,
    });
    let (stop, mut stopped) = watch::channel(false);
    let options = ServerOptions {
        allow_hosts: config.allow_hosts,
        cors_origins: config.cors_origins,
        token,
        warn: Some(Arc::new(messages::print)),
        ..ServerOptions::default()
    };
    let server = tokio::spawn(server::serve(
        listener.into_iter().collect(),
        Api::new(Arc::clone(&opened), ApiOptions::default()),
        options,
        async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        },
    ));
    let live = config.screen.map(|options| Live::start(options, opened));
    let done = match live.transpose()? {
        Some(mut live) => tokio::select! {
            _ = signals.next() => Ok(()),
            ended = live.ended() => ended,
        },
        None => {
            signals.next().await;
            Ok(())
        }
    };
    signals.restore();
    stop.send_replace(true);
    let _ = server.await;
    done.map(|()| ExitCode::SUCCESS)
}

/// Writes the difference of two saved profiles, and checks gates.
///
/// # Errors
/// A file is not a saved profile, a gate needs a figure that was not counted, or the difference cannot be written.
pub fn diff(config: &DiffConfig) -> Result<ExitCode> {
    if !config.output.is_stdout() {
        output::check(&config.output.path, output::OUTPUT)?;
    }
    let before = Arc::new(read(&config.before)?.report);
    let after = read(&config.after)?.report;
    counted(&before, &config.output, &config.before)?;
    counted(&after, &config.output, &config.after)?;
    let kind = config.output.options.kind;
    let sides = [&*before, &after];
    for gate in &config.gates {
        gate.check(sides, kind).map_err(|why| anyhow!(why))?;
    }
    let mut options = config.output.options.clone();
    options.baseline = Some(Arc::clone(&before));
    output::write_profile(
        &Output {
            path: config.output.path.clone(),
            format: config.output.format,
            options,
            at: None,
        },
        &after,
        output::OUTPUT,
    )?;
    let mut status = ExitCode::SUCCESS;
    for gate in &config.gates {
        let finding = gate.evaluate(sides, kind);
        if finding.is_missing {
            let subject = printable(&gate.text).into_owned();
            messages::print(&format!("neither profile has the function of {subject:?}"));
        }
        if finding.fires {
            messages::print(&format!("gate fired: {}", printable(&finding.to_string())));
            status = ExitCode::from(GATE_FIRED);
        }
    }
    Ok(status)
}
