//! The notes of a core: the threads' registers, the mapped files, the command, and what the kernel told the program at its start.

use anyhow::Result;
use object::elf::{EM_AARCH64, Machine, NT_AUXV, NT_FILE, NT_PRPSINFO, NT_PRSTATUS, NoteType};

use super::own_notes::{self, OwnNotes};
use memprof_code::elf::{u16_at, u32_at, u64_at};
use memprof_sys::freeze::Registers;
use memprof_sys::target_file::ReadAt;
use memprof_sys::text::printable;

/// Maximum size of all notes, in bytes: those of 20,000 threads with all registers.
const MAX_BYTES: u64 = 256 << 20;
/// Size of the header of a note, in bytes.
const HEADER: usize = 12;
/// The thread pointer of 64-bit ARM.
const NT_ARM_TLS: NoteType = NoteType(0x401);

/// Entries of the auxiliary vector (`getauxval`).
pub(super) mod auxv {
    pub(crate) const PHDR: u64 = 3;
    pub(crate) const PAGE_SIZE: u64 = 6;
    pub(crate) const ENTRY: u64 = 9;
    pub(crate) const RANDOM: u64 = 25;
    pub(crate) const EXECFN: u64 = 31;
    pub(crate) const VDSO: u64 = 33;
    /// Maximum number of entries. The kernel has about 20.
    pub(super) const MAX: usize = 256;
}

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileRange {
    /// First address.
    pub start: u64,
    /// End of the mapping.
    pub end: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Path as in `/proc/PID/maps`, without ` (deleted)`.
    pub path: String,
    /// Whether the file had no name any more.
    pub deleted: bool,
}

/// What the notes say.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The threads' registers. The first one is the thread that received the signal, or that the debugger had selected.
    pub threads: Vec<Registers>,
    /// The mapped files, by address.
    pub files: Vec<FileRange>,
    /// The auxiliary vector.
    pub auxv: Vec<(u64, u64)>,
    /// Id of the process.
    pub pid: Option<u32>,
    /// Name of the process (`comm`).
    pub comm: String,
    /// Its command line, cut off by the kernel after 79 bytes.
    pub arguments: String,
    /// The signal that ended the process; 0 for none.
    pub signal: u16,
    /// Notes of a core that memprof wrote.
    pub own: OwnNotes,
    /// What the notes lack.
    pub lacks: Vec<String>,
}

impl Notes {
    /// Reads the notes at these offsets and of these sizes.
    ///
    /// # Errors
    /// The file cannot be read. What is damaged is left out and listed in `lacks`.
    pub(super) fn read(
        file: &dyn ReadAt,
        places: &[(u64, u64)],
        machine: Machine,
    ) -> Result<Notes> {
        let mut notes = Notes::default();
        let (mut left, end) = (MAX_BYTES, file.size()?);
        for (at, size) in places {
            let there = (*size).min(end.saturating_sub(*at));
            let take = there.min(left);
            left -= take;
            if take < there {
                notes.lack(format!("notes beyond {} MiB are not read", MAX_BYTES >> 20));
            } else if there < *size {
                notes.lack("the notes are cut off".into());
            }
            let mut bytes = vec![0; take as usize];
            let got = file.read_some(&mut bytes, *at)?;
            bytes.truncate(got);
            notes.parse(&bytes, machine);
        }
        if notes.threads.is_empty() {
            notes.lack("no thread's registers are in it".into());
        }
        if notes.files.is_empty() {
            notes.lack(
                "no list of the mapped files is in it (NT_FILE), so no library is known by name"
                    .into(),
            );
        }
        Ok(notes)
    }

    fn lack(&mut self, what: String) {
        if !self.lacks.contains(&what) {
            self.lacks.push(what);
        }
    }

    fn parse(&mut self, mut bytes: &[u8], machine: Machine) {
        while bytes.len() >= HEADER {
            let (name_size, size) = (u32_at(bytes, 0) as usize, u32_at(bytes, 4) as usize);
            let kind = NoteType(u32_at(bytes, 8));
            // On 64-bit machines, neither sum overflows.
            let at = HEADER + name_size.next_multiple_of(4);
            let (name, note) = (
                bytes.get(HEADER..HEADER + name_size),
                bytes.get(at..at + size),
            );
            let (Some(name), Some(note)) = (name, note) else {
                self.lack("a note is cut off or damaged".into());
                return;
            };
            match (name, kind) {
                (b"CORE\0", NT_PRSTATUS) => self.thread(note, machine),
                (b"CORE\0", NT_PRPSINFO) if self.pid.is_none() => self.process(note),
                (b"CORE\0", NT_AUXV) if self.auxv.is_empty() => {
                    let pairs = note.chunks_exact(16);
                    let pairs = pairs.map(|pair| (u64_at(pair, 0), u64_at(pair, 8)));
                    self.auxv = pairs.take(auxv::MAX).collect();
                }
                (b"CORE\0", NT_FILE) if self.files.is_empty() => self.mapped_files(note),
                (b"LINUX\0", NT_ARM_TLS) if machine == EM_AARCH64 => {
                    if let Some(last) = self.threads.last_mut() {
                        last.thread_pointer = u64_at(note, 0);
                    }
                }
                (own_notes::OWNER, NoteType(kind)) if !self.own.add(kind, note) => {
                    self.own.is_damaged = true;
                    self.lack("memprof's own notes in it are damaged and not used".into());
                }
                _ => {}
            }
            bytes = bytes.get(at + size.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }

    /// A thread: `struct elf_prstatus`.
    fn thread(&mut self, note: &[u8], machine: Machine) {
        /// Offset of the registers.
        const REGISTERS: usize = 112;
        // `user_regs_struct` of x86-64, and `user_pt_regs` of 64-bit ARM.
        let (count, stack_pointer) = match machine {
            EM_AARCH64 => (34, 31),
            _ => (27, 19),
        };
        let Some(words) = note.get(REGISTERS..REGISTERS + 8 * count) else {
            self.lack("a thread's registers are cut off".into());
            return;
        };
        let words: Vec<u64> = words.chunks_exact(8).map(|word| u64_at(word, 0)).collect();
        if self.threads.is_empty() {
            self.signal = u16_at(note, 12);
        }
        self.threads.push(Registers {
            tid: u32_at(note, 32).cast_signed(),
            stack_pointer: words[stack_pointer],
            thread_pointer: match machine {
                EM_AARCH64 => 0,
                _ => words[21],
            },
            words,
        });
    }

    /// The process: `struct elf_prpsinfo`.
    fn process(&mut self, note: &[u8]) {
        let text = |range| {
            let bytes: &[u8] = note.get(range).unwrap_or_default();
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned()
        };
        if note.len() < 136 {
            self.lack("the process's name is cut off".into());
            return;
        }
        self.pid = Some(u32_at(note, 24));
        self.comm = text(40..56);
        self.arguments = text(56..136);
    }

    /// The mapped files: number, unit of the offsets, three words for each file, and the paths.
    fn mapped_files(&mut self, note: &[u8]) {
        const ENTRY: usize = 24;
        let (count, unit) = (u64_at(note, 0), u64_at(note, 8));
        let table = usize::try_from(count).ok();
        let table = table.and_then(|count| count.checked_mul(ENTRY)?.checked_add(16));
        let Some(paths) = table.and_then(|end| note.get(end..)) else {
            self.lack("the list of mapped files is damaged".into());
            return;
        };
        let mut paths = paths.split(|b| *b == 0);
        let mut left_out = 0;
        for entry in note[16..].chunks_exact(ENTRY).take(count as usize) {
            let path = String::from_utf8_lossy(paths.next().unwrap_or_default()).into_owned();
            let (start, end) = (u64_at(entry, 0), u64_at(entry, 8));
            let Some(offset) = u64_at(entry, 16)
                .checked_mul(unit)
                .filter(|_| start < end && !path.is_empty())
            else {
                left_out += 1;
                continue;
            };
            let bare = path.strip_suffix(" (deleted)");
            self.files.push(FileRange {
                start,
                end,
                offset,
                deleted: bare.is_some(),
                path: bare.unwrap_or(&path).to_owned(),
            });
        }
        self.files.sort_by_key(|file| file.start);
        let before = self.files.len();
        self.files.dedup_by(|file, last| file.start < last.end);
        left_out += before - self.files.len();
        if left_out > 0 {
            self.lack(format!(
                "{left_out} entries of the list of mapped files are damaged"
            ));
        }
    }

    /// A value of the auxiliary vector.
    pub(super) fn auxiliary(&self, key: u64) -> Option<u64> {
        let mut pairs = self.auxv.iter();
        pairs.find(|(k, _)| *k == key).map(|(_, value)| *value)
    }

    /// The file that is mapped at an address.
    pub(super) fn file_at(&self, addr: u64) -> Option<&FileRange> {
        let at = self.files.partition_point(|file| file.end <= addr);
        self.files.get(at).filter(|file| file.start <= addr)
    }

    /// The path of the program, if its file was mapped.
    pub(super) fn executable(&self) -> Option<&str> {
        let keys = [auxv::PHDR, auxv::ENTRY];
        let mut at = keys.into_iter().filter_map(|key| self.auxiliary(key));
        at.find_map(|addr| self.file_at(addr))
            .map(|file| file.path.as_str())
    }

    /// The command for people: its arguments or its name.
    pub(super) fn command(&self) -> String {
        let text = match self.arguments.is_empty() {
            true => &self.comm,
            false => &self.arguments,
        };
        printable(text).to_string()
    }
}
