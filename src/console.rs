//! What memprof tells its user, on stderr: messages, and diagnostics where they are asked for. While the terminal
//! belongs to the live view they go there, and to stderr when it is given back.

use std::io::{self, Write};
use std::mem;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::time::uptime;
use tracing_subscriber::prelude::*;

use crate::screen::News;

/// Messages that are kept while the view has the terminal; further ones are counted.
const MOST: usize = 200;

/// Messages that wait for the terminal.
struct Held {
    to: News,
    messages: Vec<String>,
    further: usize,
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// In the environment: which diagnostics are shown, as `debug` or `memprof::probe=trace,info`; instead of `-v`.
const FILTER: &str = "MEMPROF_LOG";

/// Shows diagnostics: none unless asked for, by so many `-v` or by `MEMPROF_LOG`.
///
/// # Errors
/// The variable's value is no filter.
pub fn show_diagnostics(verbosity: u8) -> Result<()> {
    let filter = match std::env::var(FILTER) {
        Ok(filter) if !filter.is_empty() => filter.parse().with_context(|| {
            format!("{FILTER}={filter:?} is no filter: use a level (`debug`), or `memprof::probe=trace,info`")
        })?,
        _ => match verbosity {
            0 => return Ok(()),
            1 => Targets::new().with_default(Level::INFO),
            2 => Targets::new().with_default(Level::DEBUG),
            _ => Targets::new().with_default(Level::TRACE),
        },
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_timer(uptime())
        .with_writer(|| Lines);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
        .context("cannot show diagnostics")
}

/// Takes the lines of diagnostics, one at a time.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        print_line(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message to the user.
pub(crate) fn print(message: &str) {
    print_line(&format!("memprof: {message}"));
}

fn print_line(message: &str) {
    match &mut *HELD.lock().unwrap_or_else(PoisonError::into_inner) {
        None => write(message),
        Some(held) => {
            held.to.message(message);
            if held.messages.len() < MOST {
                held.messages.push(message.to_owned());
            } else {
                held.further += 1;
            }
        }
    }
}

fn write(message: &str) {
    // Nobody reads it: nothing to be done.
    let _ = writeln!(io::stderr(), "{message}");
}

/// From now on messages go to the view.
pub(crate) fn hold(to: News) {
    let held = Held {
        to,
        messages: Vec::new(),
        further: 0,
    };
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
}

/// The terminal is free again: says what was held.
pub(crate) fn release() {
    let held = mem::take(&mut *HELD.lock().unwrap_or_else(PoisonError::into_inner));
    let Some(held) = held else {
        return;
    };
    held.messages.iter().for_each(|message| write(message));
    if held.further > 0 {
        write(&format!("and {} more messages", held.further));
    }
}
