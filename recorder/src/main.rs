//! The `tezos-recorder` command.

use std::io::{self, Write};
use std::process::ExitCode;

use tezos_recorder::cli::{self, CliError, Run};
use tezos_recorder::{doctor, export, session};

fn main() -> ExitCode {
    let done = match cli::parse_from(std::env::args_os()) {
        Ok(Run::Record(config)) => session::run(&config).map(|()| ExitCode::SUCCESS),
        Ok(Run::Export(args)) => export::run(&args).map(|()| ExitCode::SUCCESS),
        Ok(Run::Doctor { config, json }) => {
            let report = doctor::examine(config.as_deref());
            let text = if json {
                report.json()
            } else {
                report.to_string()
            };
            print(text.as_bytes(), report.status())
        }
        Ok(Run::Print(text)) => print(&text, 0),
        Err(CliError::Line(error)) => error.exit(),
        Err(CliError::Config(error)) => {
            let _ = writeln!(io::stderr(), "tezos-recorder: error: {error}");
            return ExitCode::from(2);
        }
    };
    done.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "tezos-recorder: error: {error:#}");
        ExitCode::FAILURE
    })
}

fn print(text: &[u8], status: u8) -> anyhow::Result<ExitCode> {
    match io::stdout().write_all(text) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(e).context("cannot write to stdout"))
        }
        _ => Ok(ExitCode::from(status)),
    }
}
