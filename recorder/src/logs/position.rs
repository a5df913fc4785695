//! Positions in files and journals, kept over restarts.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Source;

/// How often a position is written. The store commits more often, so what lies before the position of the last time is stored.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of a file with a position, in bytes.
const MAX_SIZE: u64 = 1 << 14;

/// The file with the position in a source. After a crash, lines of up to two seconds come again; none is missed.
pub struct Position {
    path: PathBuf,
    source: String,
    written: Instant,
    reached: Option<String>,
}

impl Position {
    /// The position in a source, in a directory.
    pub fn new(directory: &Path, source: &Source) -> Self {
        let source = source.to_string();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        // Names of files have at most 255 bytes.
        let name: String = source.chars().rev().take(200).map(plain).collect();
        let name: String = name.chars().rev().collect();
        Self {
            path: directory.join(format!("{name}.position")),
            source,
            written: Instant::now(),
            reached: None,
        }
    }

    /// The position of the run before.
    pub fn load(&self) -> Option<String> {
        let size = fs::metadata(&self.path).ok()?.len();
        let text = (size <= MAX_SIZE).then(|| fs::read_to_string(&self.path).ok())??;
        // Two sources may have the same name of a file.
        let (source, position) = text.split_once('\n')?;
        (source == self.source).then(|| position.trim_end().to_owned())
    }

    /// Notes a position. It is written the next time, when what lies before it is stored.
    pub fn reach(&mut self, position: impl FnOnce() -> String) -> io::Result<()> {
        if self.written.elapsed() < INTERVAL {
            return Ok(());
        }
        self.written = Instant::now();
        let position = position();
        match self.reached.replace(position) {
            Some(before) if self.reached.as_ref() != Some(&before) => self.write(&before),
            _ => Ok(()),
        }
    }

    /// Writes the last position, at the end.
    pub fn write(&self, position: &str) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        writeln!(file, "{}\n{position}", self.source)?;
        fs::rename(&new, &self.path)
    }
}
