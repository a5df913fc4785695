//! Messages to the user on stderr, and diagnostics if they are enabled. While the live view owns the terminal, messages go to the
//! view; they are also printed on stderr when the terminal is released.

use std::io::{self, IsTerminal, Write};
use std::mem;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::time::uptime;
use tracing_subscriber::prelude::*;

use crate::interruptible_writer::InterruptibleWriter;

/// Maximum number of messages stored while the live view owns the terminal; further ones are only counted.
const MAX_MESSAGES: usize = 200;

/// Messages stored until the terminal is released.
pub struct DeferredMessages {
    to: Box<dyn Fn(&str) + Send>,
    messages: Vec<String>,
    further: usize,
}

static HELD: Mutex<Option<DeferredMessages>> = Mutex::new(None);

/// Environment variable that selects the diagnostics instead of `-v`, such as `debug` or
/// `memprof::probe=trace,info`.
const FILTER: &str = "MEMPROF_LOG";

/// Enables diagnostics, as selected by `MEMPROF_LOG` or otherwise by the number of `-v` options. By default there are none.
///
/// # Errors
/// The value of `MEMPROF_LOG` is not a valid filter.
pub fn show_diagnostics(verbosity: u8) -> Result<()> {
    let filter = match std::env::var(FILTER) {
        Ok(filter) if !filter.is_empty() => filter.parse().with_context(|| {
            format!("cannot parse {FILTER}={filter:?}: use a level such as `debug`, or a list such as `memprof::probe=trace,info`")
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
        .context("cannot set up diagnostics")
}

/// Prints diagnostics, one line at a time. While the live view owns the terminal, lines are printed only if stderr is not a
/// terminal.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() || !io::stderr().is_terminal() {
            InterruptibleWriter::new(&io::stderr()).write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints a message to the user.
pub fn print(message: &str) {
    match &mut *HELD.lock().unwrap_or_else(PoisonError::into_inner) {
        None => write(message),
        Some(held) => {
            (held.to)(message);
            if held.messages.len() < MAX_MESSAGES {
                held.messages.push(message.to_owned());
            } else {
                held.further += 1;
            }
        }
    }
}

fn write(message: &str) {
    // This fails only if nobody reads stderr.
    let line = format!("memprof: {message}\n");
    let _ = InterruptibleWriter::new(&io::stderr()).write_all(line.as_bytes());
}

/// Sends messages to `to`, and stores them, until [`release`].
pub fn hold(to: impl Fn(&str) + Send + 'static) {
    let held = DeferredMessages {
        to: Box::new(to),
        messages: Vec::new(),
        further: 0,
    };
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
}

/// Prints the stored messages on stderr. Call it once the terminal is released.
pub fn release() {
    let held = mem::take(&mut *HELD.lock().unwrap_or_else(PoisonError::into_inner));
    let Some(held) = held else {
        return;
    };
    held.messages.iter().for_each(|message| write(message));
    if held.further > 0 {
        write(&format!("and {} more messages", held.further));
    }
}
