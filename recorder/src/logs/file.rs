//! Lines that are appended to a file, which may be rotated or truncated.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;

use super::lines::Lines;
use super::position::Position;
use super::{Clock, MAX_LINE, Output, Source, Stopped, Wake, count, syslog, text, times};

/// How often the file is looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// Bytes to read at a time, and the pause after them: at most 6 MiB a second, so that a long file does not overrun the store's queue.
const PIECE: usize = 1 << 16;
const PAUSE: Duration = Duration::from_millis(10);

/// Tells a file from others at its path, also after its number was used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    /// Nanoseconds since 1970, 0 where the file system does not know it.
    created: u128,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        let created = metadata.created().ok();
        let created = created.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created: created.map_or(0, |since| since.as_nanos()),
        }
    }
}

/// A file that is read.
struct Reading {
    path: PathBuf,
    file: File,
    id: FileId,
    /// Bytes read.
    offset: u64,
}

impl Reading {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        Ok(Self {
            path: path.to_owned(),
            id: FileId::of(&metadata),
            file,
            offset: 0,
        })
    }

    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.offset = self.file.seek(SeekFrom::Start(offset))?;
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// Follows the file or files of a source.
pub struct Follower {
    source: Source,
    position: Position,
    zone: TimeZone,
    lines: Lines,
    reading: Option<Reading>,
}

impl Follower {
    pub fn new(source: Source, position: Position) -> Self {
        Self {
            source,
            position,
            zone: TimeZone::system(),
            lines: Lines::new(MAX_LINE),
            reading: None,
        }
    }

    pub fn follow(mut self, mut output: Output, stopped: &Stopped) {
        let begun = self.begin(&output);
        let mut buffer = vec![0; PIECE];
        let mut replaced = false;
        output.shared.set_error(begun.err());
        loop {
            let read = self.read(&mut buffer, &mut output);
            let more = matches!(read, Ok(size) if size == PIECE);
            let step = read.and_then(|_| match more {
                true => Ok(()),
                false => self.at_end(&mut replaced, &mut output),
            });
            let step = step.and_then(|()| self.save());
            output.shared.set_error(step.err());
            let pause = if more { PAUSE } else { INTERVAL };
            if stopped.wait(None, Some(pause)) == Wake::Stop {
                break;
            }
        }
        if let Some(position) = self.reached() {
            let written = self.position.write(&position);
            output.shared.set_error(
                written
                    .err()
                    .map(|e| self.cannot("keep the position in", e)),
            );
        }
    }

    /// Opens the file of the position that was kept, else goes to the end of the present file.
    fn begin(&mut self, output: &Output) -> Result<(), String> {
        if let Some((id, offset)) = self.position.load().and_then(|text| parse(&text)) {
            let mut files = self.directory().read_dir().into_iter().flatten().flatten();
            let same = |path: &Path| fs::metadata(path).is_ok_and(|m| FileId::of(&m) == id);
            let there = files.find(|file| same(&file.path()));
            match there.and_then(|file| Reading::open(&file.path()).ok()) {
                Some(mut reading) => {
                    let seek = reading.seek(offset);
                    self.reading = Some(reading);
                    return seek.map_err(|e| self.cannot("read", e));
                }
                // What was written to it after the position is lost. The next file is read from its beginning.
                None => count(&output.shared.interruptions),
            }
            return Ok(());
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
        let size = reading.file.read(buffer);
        let size = size.map_err(|e| self.cannot("read", e))?;
        if let Some(reading) = &mut self.reading {
            reading.offset += size as u64;
        }
        let clock = self.clock();
        let mut line = |line: &[u8], cut| put(line, cut, &clock, output);
        self.lines.take(&buffer[..size], &mut line);
        Ok(size)
    }

    /// Looks whether the file was truncated or replaced. A file that was replaced is read for another interval, because its writer may not
    /// have noticed.
    fn at_end(&mut self, replaced: &mut bool, output: &mut Output) -> Result<(), String> {
        if let Some(reading) = &mut self.reading {
            let size = reading.size();
            if size.is_ok_and(|size| size < reading.offset) {
                count(&output.shared.interruptions);
                let seek = reading.seek(0);
                self.lines = Lines::new(MAX_LINE);
                return seek.map_err(|e| self.cannot("read", e));
            }
        }
        let Some(next) = self.next() else {
            return match self.reading {
                Some(_) => Ok(()),
                None => Err(self.cannot("open", io::ErrorKind::NotFound.into())),
            };
        };
        if self.reading.is_some() && !std::mem::replace(replaced, true) {
            return Ok(());
        }
        *replaced = false;
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
        let id = FileId::of(&fs::metadata(&path).ok()?);
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
        let reading = self.reading.as_ref()?;
        let FileId {
            device,
            inode,
            created,
        } = reading.id;
        let offset = reading.offset - self.lines.begun();
        Some(format!("{device} {inode} {created} {offset}"))
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

/// Reads the text of a position.
fn parse(text: &str) -> Option<(FileId, u64)> {
    let mut words = text.split(' ');
    let id = FileId {
        device: words.next()?.parse().ok()?,
        inode: words.next()?.parse().ok()?,
        created: words.next()?.parse().ok()?,
    };
    Some((id, words.next()?.parse().ok()?))
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
