//! Lines of a systemd unit, read by `journalctl`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::tz::TimeZone;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::lines::Lines;
use super::position::Position;
use super::wait::{Stopped, Wake};
use super::{Clock, MAX_LINE, Output, count, syslog, text, times};
use crate::time::Timestamp;

/// Maximum size of an entry as JSON, in bytes. Messages that are no UTF-8 are lists of numbers.
const MAX_ENTRY: usize = 8 * MAX_LINE;

/// The pause before the reader is started again.
const PAUSE: Duration = Duration::from_secs(2);

/// How often the position is kept if nothing comes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Follows the journal of a unit.
pub struct Journal {
    unit: String,
    position: Position,
    cursor: Option<String>,
    zone: TimeZone,
}

/// The fields of an entry that are used.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(rename = "__CURSOR")]
    cursor: String,
    /// Microseconds since 1970.
    #[serde(rename = "__REALTIME_TIMESTAMP")]
    time: String,
    #[serde(rename = "PRIORITY")]
    priority: Option<String>,
    /// A text, or bytes as numbers.
    #[serde(rename = "MESSAGE", borrow)]
    message: Option<&'a RawValue>,
}

impl Journal {
    pub fn new(unit: String, position: Position) -> Self {
        Self {
            cursor: position.load(),
            unit,
            position,
            zone: TimeZone::system(),
        }
    }

    pub fn follow(mut self, mut output: Output, stopped: &Stopped) {
        loop {
            match self.start() {
                Ok((mut child, stdout, errors)) => {
                    let ended = self.read(stdout, &mut output, stopped);
                    // It may have ended by itself.
                    let _ = child.kill();
                    let status = child.wait();
                    let Err(e) = ended else { break };
                    let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                    let error = format!(
                        "journalctl -u {} ended ({status}): {}; it is started again",
                        self.unit,
                        first_line(errors).unwrap_or_else(|| e.to_string()),
                    );
                    output.set_error(Some(error));
                    count(&output.shared.interruptions);
                }
                Err(e) => {
                    let error = format!(
                        "cannot start journalctl: {e}; install systemd, or use another source of logs"
                    );
                    output.set_error(Some(error));
                }
            }
            if stopped.wait(None, Some(PAUSE)) == Wake::Stop {
                break;
            }
        }
        if let Some(cursor) = &self.cursor {
            let written = self.position.write(cursor);
            output.set_error(written.err().map(cannot_keep));
        }
    }

    /// Starts the reader at the position, or at the end of the journal. Returns it, its output and its errors.
    fn start(&self) -> io::Result<(Child, ChildStdout, File)> {
        // Neither end waits: the reader drops errors that the pipe has no room for.
        let (errors, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let mut command = Command::new("journalctl");
        command.args(["--follow", "--all", "--quiet", "--output=json"]);
        command.arg("--output-fields=MESSAGE,PRIORITY");
        command.arg(format!("--unit={}", self.unit));
        match &self.cursor {
            Some(cursor) => {
                command.args(["--lines=all".to_owned(), format!("--after-cursor={cursor}")])
            }
            None => command.arg("--lines=0"),
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(writer);
        let mut child = command.spawn()?;
        let stdout = child.stdout.take();
        let stdout = stdout.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((child, stdout, errors.into()))
    }

    /// Reads until the thread shall end, or until an error.
    fn read(
        &mut self,
        mut stdout: ChildStdout,
        output: &mut Output,
        stopped: &Stopped,
    ) -> io::Result<()> {
        let mut lines = Lines::new(MAX_ENTRY);
        let mut buffer = vec![0; MAX_LINE];
        loop {
            match stopped.wait(Some(stdout.as_fd()), Some(INTERVAL)) {
                Wake::Stop => return Ok(()),
                Wake::Time => {}
                Wake::Input => {
                    let size = stdout.read(&mut buffer)?;
                    if size == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    lines.take(&buffer[..size], &mut |line, cut| {
                        self.line(line, cut, output)
                    });
                }
            }
            let cursor = self.cursor.clone();
            let kept = cursor.map_or(Ok(()), |cursor| self.position.reach(|| cursor));
            output.set_error(kept.err().map(cannot_keep));
        }
    }

    /// Takes an entry of the journal.
    fn line(&mut self, line: &[u8], cut: bool, output: &mut Output) {
        let entry: Option<Entry<'_>> = serde_json::from_slice(line).ok().filter(|_| !cut);
        let Some(entry) = entry else {
            // Nothing of it can be used.
            count(&output.shared.received);
            count(&output.shared.malformed);
            output.shared.cut.fetch_add(cut.into(), Ordering::Relaxed);
            return;
        };
        let clock = Clock {
            now: times::now(),
            zone: self.zone.clone(),
        };
        let mut message = message(entry.message.map_or("", RawValue::get));
        if message.len() > MAX_LINE {
            count(&output.shared.cut);
            message.truncate(MAX_LINE);
        }
        let micros: Option<u64> = entry.time.parse().ok();
        let time = micros.map(|micros| Timestamp(micros.saturating_mul(1000)));
        let severity = entry.priority.and_then(|p| p.parse().ok());
        let level = severity.map(text::level_of_severity);
        let clean = text::clean(&message);
        let text = text::read(&clean, &clock);
        output.put(syslog::entry(text, time, level, clock.now), time.is_some());
        self.cursor = Some(entry.cursor);
    }
}

/// The bytes of a message.
fn message(json: &str) -> Vec<u8> {
    match serde_json::from_str::<String>(json) {
        Ok(text) => text.into_bytes(),
        // The journal has some fields several times; then they are lists of texts.
        Err(_) => serde_json::from_str(json).unwrap_or_default(),
    }
}

/// The first line that is there now.
fn first_line(mut errors: File) -> Option<String> {
    let mut buffer = [0; 256];
    let size = errors.read(&mut buffer).ok()?;
    let text = text::clean(&buffer[..size]);
    let line = text.lines().next().map(str::trim_end);
    line.filter(|line| !line.is_empty()).map(str::to_owned)
}

fn cannot_keep(e: io::Error) -> String {
    format!("cannot keep the position in the journal: {e}; lines may come again after a restart")
}
