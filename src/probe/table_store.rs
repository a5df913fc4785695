//! The maps to which unwind tables are published, as the publisher sees them.

use std::collections::HashSet;

use anyhow::Result;

use memprof_code::elf::Segment;
use memprof_code::interpreter::Interpreter;
use memprof_code::modules::FileNumber;
use memprof_code::unwind::Rule;
use memprof_sys::ids::FileKey;

/// A file as the probe knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeFile {
    /// The file's number; `None` if it is not an ELF file.
    pub number: Option<FileNumber>,
    /// Whether the probe need not report the file when it is mapped again.
    pub ready: bool,
    /// The code segments of its program headers.
    pub segments: Vec<Segment>,
}

impl CodeFile {
    /// A file that never gets a table.
    pub const WITHOUT_TABLE: CodeFile = CodeFile {
        number: None,
        ready: true,
        segments: Vec::new(),
    };
}

/// The maps to which unwind tables are published.
pub trait TableStore {
    /// Total capacity in rules.
    const RULES: u32;
    /// Rows per chunk.
    const CHUNK_ROWS: u32;
    /// Total capacity in chunks.
    const CHUNKS: u32;
    /// Maximum number of code segments per file.
    const SEGMENTS: usize;

    /// Writes rules from index `first` on.
    ///
    /// # Errors
    /// The map refused them.
    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> Result<()>;

    /// Writes rows of a chunk: each part is (first row, rows). Creates the chunk if it is new.
    ///
    /// # Errors
    /// The map refused them.
    fn write_rows(&mut self, chunk: u32, parts: &[(u32, &[u32])]) -> Result<()>;

    /// Writes a page: the location of its rows and the first of the table's rules.
    ///
    /// # Errors
    /// The map refused it.
    fn write_page(&mut self, file: FileNumber, page: u32, at: PageAt) -> Result<()>;

    /// Marks a table as whole: all its pages are written.
    ///
    /// # Errors
    /// The map refused it.
    fn write_end(&mut self, file: FileNumber) -> Result<()>;

    /// Deletes a page.
    fn delete_page(&mut self, file: FileNumber, page: u32);

    /// Deletes the mark of a whole table.
    fn delete_end(&mut self, file: FileNumber);

    /// Writes a file's record.
    ///
    /// # Errors
    /// The map refused it.
    fn write_file(&mut self, key: FileKey, file: &CodeFile) -> Result<()>;

    /// Records that a file contains an interpreter.
    ///
    /// # Errors
    /// The map refused it.
    fn write_interpreter(&mut self, file: FileNumber, interpreter: &Interpreter) -> Result<()>;

    /// The files that the followed address spaces currently map.
    ///
    /// # Errors
    /// The map could not be read.
    fn mapped(&self) -> Result<HashSet<FileNumber>>;
}

/// The location of a page's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageAt {
    /// The chunk.
    pub chunk: u32,
    /// The page's first row in the chunk.
    pub first: u32,
    /// Number of rows.
    pub count: u32,
    /// The first of the table's rules.
    pub rules: u32,
}
