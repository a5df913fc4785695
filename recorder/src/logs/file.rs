//! Lines that are appended to a file, which may be rotated or truncated.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::lines::Lines;
use super::position::Position;
use super::reading::{FileId, FilePosition, Reading};
use super::wait::{Stopped, Wake};
use super::{Clock, MAX_LINE, Output, Shared, Source, count, syslog, text, times};

/// How often the file is looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// Bytes to read at a time, and the pause after them: at most 6 MiB a second, so that a long file does not overrun the store's queue.
const PIECE: usize = 1 << 16;
const PAUSE: Duration = Duration::from_millis(10);

/// Follows the file or files of a source.
pub struct Follower {
    source: Source,
    position: Position,
    zone: TimeZone,
    lines: Lines,
    reading: Option<Reading>,
    /// Whether another file was found in its place the last time.
    replaced: bool,
}

impl Follower {
    /// What is written to the file from now on will be read.
    pub fn new(source: Source, position: Position, output: &mut Output) -> Self {
        let mut follower = Self {
            source,
            position,
            zone: TimeZone::system(),
            lines: Lines::new(MAX_LINE),
            reading: None,
            replaced: false,
        };
        let begun = follower.begin(&output.shared);
        output.set_error(begun.err());
        follower
    }

    pub fn follow(mut self, mut output: Output, stopped: &Stopped) {
        let mut buffer = vec![0; PIECE];
        loop {
            let read = self.read(&mut buffer, &mut output);
            let more = matches!(read, Ok(size) if size == PIECE);
            let step = read.and_then(|_| match more {
                true => Ok(()),
                false => self.at_end(&mut output),
            });
            let step = step.and_then(|()| self.save());
            output.set_error(step.err());
            let pause = if more { PAUSE } else { INTERVAL };
            if stopped.wait(None, Some(pause)) == Wake::Stop {
                break;
            }
        }
        if let Some(position) = self.reached() {
            let written = self.position.write(&position);
            let error = written
                .err()
                .map(|e| self.cannot("keep the position in", e));
            output.set_error(error);
        }
    }

    /// Opens the file of the position that was kept, else goes to the end of the present file.
    fn begin(&mut self, shared: &Shared) -> Result<(), String> {
        if let Some(place) = self
            .position
            .load()
            .and_then(|text| FilePosition::parse(&text))
        {
            let mut files = self.directory().read_dir().into_iter().flatten().flatten();
            let there = files.find(|file| FileId::at(&file.path()) == Some(place.id));
            let Some(mut reading) = there.and_then(|file| Reading::open(&file.path()).ok()) else {
                // What was written to it after the position is lost. The next file is read from its beginning.
                count(&shared.interruptions);
                return Ok(());
            };
            let seek = reading.seek(place.offset);
            self.reading = Some(reading);
            return seek.map_err(|e| self.cannot("read", e));
        }
        let Some(path) = self.next() else {
            return Ok(());
        };
        let end = Reading::open(&path).and_then(|mut reading| {
            reading.seek(reading.size()?)?;
            Ok(reading)
        });
        // A file that cannot be opened is tried again, and read from its beginning when it is there.
        self.reading = end.ok();
        Ok(())
    }

    /// Reads a piece; returns its size.
    fn read(&mut self, buffer: &mut [u8], output: &mut Output) -> Result<usize, String> {
        let Some(reading) = &mut self.reading else {
            return Ok(0);
        };
        let size = reading.read(buffer);
        let size = size.map_err(|e| self.cannot("read", e))?;
        let clock = self.clock();
        let mut line = |line: &[u8], cut| put(line, cut, &clock, output);
        self.lines.take(&buffer[..size], &mut line);
        Ok(size)
    }

    /// Looks whether the file was truncated or replaced. A file that was replaced is read for another interval, because its writer may not
    /// have noticed.
    fn at_end(&mut self, output: &mut Output) -> Result<(), String> {
        if let Some(reading) = &mut self.reading {
            let size = reading.size();
            if size.is_ok_and(|size| size < reading.offset) {
                count(&output.shared.interruptions);
                let seek = reading.seek(0);
                self.lines = Lines::new(MAX_LINE);
                return seek.map_err(|e| self.cannot("read", e));
            }
        }
        let next = self.next();
        let noticed = std::mem::replace(&mut self.replaced, next.is_some());
        let Some(next) = next else {
            return match self.reading {
                Some(_) => Ok(()),
                None => Err(self.cannot("open", io::ErrorKind::NotFound.into())),
            };
        };
        if self.reading.is_some() && !noticed {
            return Ok(());
        }
        let reading = Reading::open(&next).map_err(|e| self.cannot("open", e))?;
        let clock = self.clock();
        self.lines
            .flush(&mut |line, cut| put(line, cut, &clock, output));
        self.reading = Some(reading);
        Ok(())
    }

    /// The file to read after the present one, if there is one.
    fn next(&self) -> Option<PathBuf> {
        let path = match &self.source {
            Source::Daily(directory) => daily(directory, self.reading.as_ref()),
            _ => Some(self.path().to_owned()),
        }?;
        let id = FileId::at(&path)?;
        let other = self.reading.as_ref().is_none_or(|reading| reading.id != id);
        other.then_some(path)
    }

    /// The path of the source.
    fn path(&self) -> &Path {
        match &self.source {
            Source::File(path) | Source::Daily(path) => path,
            _ => Path::new(""),
        }
    }

    /// The directory in which the file, or the files, are.
    fn directory(&self) -> &Path {
        let path = self.path();
        match &self.source {
            Source::Daily(_) => path,
            _ => path
                .parent()
                .filter(|p| *p != Path::new(""))
                .unwrap_or(Path::new(".")),
        }
    }

    fn clock(&self) -> Clock {
        Clock {
            now: times::now(),
            zone: self.zone.clone(),
        }
    }

    /// The position behind the last whole line, as text.
    fn reached(&self) -> Option<String> {
        let Reading { id, offset, .. } = *self.reading.as_ref()?;
        let offset = offset - self.lines.begun();
        Some(FilePosition { id, offset }.to_string())
    }

    fn save(&mut self) -> Result<(), String> {
        let Some(reached) = self.reached() else {
            return Ok(());
        };
        let written = self.position.reach(|| reached);
        written.map_err(|e| self.cannot("keep the position in", e))
    }

    fn cannot(&self, action: &str, e: io::Error) -> String {
        let read = self.reading.as_ref();
        let path = read.map_or(self.path(), |reading| &reading.path);
        format!("cannot {action} {}: {e}; it is tried again", path.display())
    }
}

fn put(line: &[u8], cut: bool, clock: &Clock, output: &mut Output) {
    output.shared.cut.fetch_add(cut.into(), Ordering::Relaxed);
    let clean = text::clean(line);
    let text = text::read(&clean, clock);
    if !text.message.is_empty() {
        let entry = syslog::entry(text, None, None, clock.now);
        // A character may have been cut in two.
        output.put(entry, cut || std::str::from_utf8(line).is_ok());
    }
}

/// The daily file after the one that is read; the newest if none is.
fn daily(directory: &Path, read: Option<&Reading>) -> Option<PathBuf> {
    let is_daily = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let date = name.and_then(|n| n.strip_prefix("daily-")?.strip_suffix(".log"));
        date.is_some_and(|date| date.len() == 8 && date.bytes().all(|c| c.is_ascii_digit()))
    };
    let files = directory.read_dir().ok()?.flatten().map(|file| file.path());
    let files = files.filter(is_daily);
    match read {
        Some(reading) => files.filter(|path| *path > reading.path).min(),
        None => files.max(),
    }
}
