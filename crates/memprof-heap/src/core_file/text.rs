//! What a report says of the core that it was read from, and of the core that was saved.

use std::io::{self, Write};

use super::{CoreFileState, CoreReport, SavedCore};
use memprof_sys::text::{printable, size};

/// Number of files listed that were not found or are others.
const FEW: usize = 10;

impl CoreReport {
    /// Writes where the figures come from, and what they lack.
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let ended = match self.signal {
            0 => String::new(),
            signal => format!(", ended by signal {signal}"),
        };
        writeln!(
            out,
            "\nRead from the core {} ({}{}), of: {}{ended}; threads: {}.",
            printable(&self.path),
            size(self.bytes),
            self.compression
                .map_or(String::new(), |name| format!(", {name}")),
            printable(&self.command),
            self.threads
        )?;
        match self.residency {
            true => writeln!(
                out,
                "The figures are those of the snapshot that was saved: memprof wrote the core, and which pages were resident."
            ),
            false => writeln!(
                out,
                "The figures are bytes in the core, not RSS: a core does not say which pages were resident. {} are not counted: {}.",
                match self.holes {
                    true => "Its holes, pages that were never written to,",
                    false => "Pages of zeroes",
                },
                size(self.zeroes)
            ),
        }?;
        if self.not_compared > 0 {
            writeln!(
                out,
                "Pages of mapped files that could not be compared with the file: {}; those of writable mappings are counted whole.",
                size(self.not_compared)
            )?;
        }
        for what in &self.lacks {
            writeln!(out, "Note: {}.", printable(what))?;
        }
        self.write_files(out)
    }

    fn write_files(&self, out: &mut dyn Write) -> io::Result<()> {
        let others = || {
            let files = self.files.iter();
            files.filter(|file| file.state != CoreFileState::Matches)
        };
        for file in others().take(FEW) {
            let path = printable(&file.path);
            match file.state {
                CoreFileState::Differs => writeln!(
                    out,
                    "File {path}: another one than in the core, and not used; --sysroot names the root that has it"
                ),
                CoreFileState::Unchecked => {
                    writeln!(out, "File {path}: used, not checked (no build id)")
                }
                _ => writeln!(
                    out,
                    "File {path}: not found ({}); --sysroot names the root that has it",
                    file.error.as_deref().unwrap_or("no such file")
                ),
            }?;
        }
        let more = others().count().saturating_sub(FEW);
        match more {
            0 => Ok(()),
            more => writeln!(out, "and {more} more files, which --format json lists"),
        }
    }
}

impl SavedCore {
    /// Writes where the core is.
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "Saved as a core: {}, {} on disk, {} long with holes for pages of zeroes.",
            printable(&self.path),
            size(self.stored),
            size(self.bytes)
        )?;
        match self.not_saved {
            0 => Ok(()),
            bytes => writeln!(
                out,
                "Of mapped files and shared memory, {} could not be read and are zeroes in it.",
                size(bytes)
            ),
        }
    }
}
