//! The memory after the code of detours, where memprof fills it in: in processes that do not place their detours themselves
//! (`map_code()` in `sampler/detours.c`).

use std::io;

use memprof_code::allocators::{DetourKind, Detours};
use memprof_sys::freeze::StillProcess;

/// Size of a page, and of `struct detour`, in bytes.
const PAGE: u64 = 4096;
const DESCRIPTION: u64 = 16;
/// Index of `quick` in `struct tables`, in words.
const QUICK: u64 = 2 * KINDS;
const KINDS: u64 = DetourKind::Frees as u64 + 1;
/// Size of `struct tables`, in bytes.
pub(super) const TABLES_BYTES: u64 = 8 * 3 * KINDS;

/// The library in a process.
pub(crate) struct MappedLibrary {
    /// Its load address.
    pub base: u64,
    /// The words that a loader replaces by their sum with the load address.
    pub relative: Vec<(u64, u64)>,
    /// Address of its `struct tables`, in its file.
    pub tables: u64,
    /// Distance of a thread's state from the thread's address, in bytes, if it is not in a table.
    pub thread_state: u64,
}

impl MappedLibrary {
    /// A word of `struct tables`; `None` if it is no address.
    fn table(&self, index: u64) -> Option<u64> {
        let at = self.tables + 8 * index;
        let found = self.relative.iter().find(|(place, _)| *place == at);
        found.map(|(_, value)| self.base.wrapping_add(*value))
    }

    /// Writes what the code of the detours, at `code`, reads from the memory after it. That memory can still be written to, and
    /// has [`bytes_after_code`] bytes.
    ///
    /// # Errors
    /// The reason why it is not written.
    pub(crate) fn put_words(
        &self,
        process: &mut dyn StillProcess,
        code: u64,
        detours: &Detours,
    ) -> Result<(), String> {
        let words = code + detours.code.len() as u64;
        let descriptions = words + detours.words_bytes();
        let (mut read, mut described) = (Vec::new(), Vec::new());
        for (number, detour) in (0..).zip(&detours.all) {
            let kind = detour.kind as u64;
            let function = self.table(2 * kind + u64::from(detour.entry != 0));
            read.extend([
                descriptions + DESCRIPTION * number,
                function.ok_or("the library was not compiled correctly")?,
                self.table(QUICK + kind).unwrap_or(self.thread_state),
            ]);
            let [size, elements, pointer] = detour.arguments;
            let arguments = [size, elements, pointer, 0, 0, 0, 0, 0];
            let original = code + Detours::original(number);
            described.extend([original, u64::from_le_bytes(arguments)]);
        }
        put(process, words, &read)?;
        put(process, descriptions, &described)?;
        // The descriptions change.
        let protect = [
            words,
            detours.words_bytes(),
            libc::PROT_READ as u64,
            0,
            0,
            0,
        ];
        process.call(libc::SYS_mprotect, protect).map(drop)
    }
}

/// Size of the memory after the code: the words and the descriptions of the detours, each in whole pages.
pub(crate) fn bytes_after_code(detours: &Detours) -> u64 {
    let descriptions = detours.all.len() as u64 * DESCRIPTION;
    detours.words_bytes() + descriptions.next_multiple_of(PAGE)
}

/// Writes words into a process.
///
/// # Errors
/// The reason why they are not written.
pub(crate) fn put(process: &dyn StillProcess, at: u64, words: &[u64]) -> Result<(), String> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let written = process.write(at, &bytes);
    written.map_err(|e: io::Error| format!("the library's memory cannot be written: {e}"))
}
