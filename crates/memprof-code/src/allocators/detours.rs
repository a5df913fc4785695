//! Plans detours: an allocation function inside an executable is made to lead to the sampling library, by a jump at its
//! entry. The instructions that the jump displaces are moved to other memory, from which the library calls the function.
//!
//! A detour is planned only where it changes nothing else: no branch leads between the displaced instructions, and none
//! of them calls, so that no return address ever lies in the memory of moved instructions. `detours/entry.rs` judges and
//! moves the instructions of one function, `detours/branches.rs` searches the file for branches between them. The
//! library's side is `sampler/detours.c` in `memprof-heap`.

mod branches;
mod entry;
mod slot;
#[cfg(test)]
mod tests;

use std::ops::Range;

use object::elf::EM_X86_64;

use self::slot::{MOVED, SIZE, Slot};
use super::own_functions;
use crate::elf::{Elf, ElfError};
use memprof_sys::target_file::ReadAt;

/// Size of a `jmp` with a 32-bit distance, in bytes.
pub const JUMP: usize = 5;
/// Maximum number of displaced bytes of a function.
pub const DISPLACED: usize = 16;
/// Size of a word, and of the words that the code of one detour reads, in bytes.
const WORD: u64 = 8;
const WORDS: u64 = 3 * WORD;
/// Size of a page, in bytes.
const PAGE: u64 = 4096;
/// Distance between the executable and the code of its detours, in bytes: programs sometimes place a guard there.
const GAP: u64 = 64 << 10;
/// The effect of a redirected function. The values are those of `enum detour_kind` in `sampler/detours.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DetourKind {
    /// Returns a new block.
    Allocates = 0,
    /// As `Allocates`, or throws an exception.
    AllocatesOrThrows = 1,
    /// Resizes a block, which stays if that fails.
    Resizes = 2,
    /// Resizes a block, which is freed if that fails.
    ResizesOrFrees = 3,
    /// Stores the address of a new block, and returns 0.
    Stores = 4,
    /// Frees a block.
    Frees = 5,
}

/// Where the library has the state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadStates {
    /// In its thread-local memory, for which a loader has made room.
    ThreadLocal,
    /// In a table by the threads' addresses, in a process without a loader.
    Table,
}

/// One redirected function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// Name of the function.
    pub name: String,
    /// Address in the file of the first displaced instruction: the function's entry, or after its `endbr64`.
    pub address: u64,
    /// The displaced instructions, at least [`JUMP`] and at most 16 bytes.
    pub displaced: Vec<u8>,
    /// The function's effect.
    pub kind: DetourKind,
    /// Indices of the arguments size, number of elements, and block or place of the result; 0xff: none.
    pub arguments: [u8; 3],
    /// Offset in its code of the instruction to which the jump leads, in bytes.
    pub entry: u8,
}

/// The detours of an executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detours {
    /// The redirected functions.
    pub all: Vec<Detour>,
    /// Address of `code`, in the file's addresses. Negative for most files: the code lies before the executable.
    pub near: i64,
    /// Whole pages of code: 192 bytes for each detour. They read three words for each detour, from the memory after them: what
    /// becomes the fifth argument, the address of the library's function, and where most calls find what they need: of a function
    /// that frees, the filter; of others, [`ThreadStates::ThreadLocal`]'s distance from the thread's address, or the
    /// [`ThreadStates::Table`].
    pub code: Vec<u8>,
    /// Functions without a detour, by the reason.
    pub refused: Vec<(String, &'static str)>,
}

impl Detours {
    /// Plans the detours of an executable. `near` tells where the code can be, given its size in bytes and the executable's
    /// addresses; `None` leaves it to memprof. `threads` tells where the library has the state of a thread there.
    ///
    /// # Errors
    /// The file is not an ELF file that memprof can read.
    pub fn plan(
        executable: &dyn ReadAt,
        threads: ThreadStates,
        near: impl FnOnce(Range<u64>, u64) -> Option<i64>,
    ) -> Result<Detours, ElfError> {
        let elf = Elf::read(executable)?;
        if elf.machine() != EM_X86_64 {
            return Ok(Detours::default());
        }
        let mut detours = Detours::default();
        let mut chosen = Vec::new();
        for function in &own_functions(&elf)? {
            match entry::detour(function) {
                Ok(detour) => chosen.push(detour),
                Err(why) => detours.refused.push((function.name.clone(), why)),
            }
        }
        let branched = branches::into(&elf, &chosen)?;
        for detour in chosen {
            match branched.contains(&detour.address) {
                false => detours.all.push(detour),
                true => detours
                    .refused
                    .push((detour.name, "code branches into its beginning")),
            }
        }
        if detours.all.is_empty() {
            return Ok(detours);
        }
        let addresses = extent(&elf);
        let bytes = (detours.all.len() * SIZE) as u64;
        let size = bytes.next_multiple_of(PAGE) + detours.words_bytes();
        let before = || -> i64 {
            let start = addresses.start & !(PAGE - 1);
            start.cast_signed().wrapping_sub_unsigned(GAP + size)
        };
        detours.near = near(addresses.clone(), size).unwrap_or_else(before);
        detours.assemble(threads);
        Ok(detours)
    }

    /// Offset in `code` of the moved instructions of a detour, which lead to the original function.
    pub fn original(number: u64) -> u64 {
        number * SIZE as u64 + MOVED as u64
    }

    /// Size of the words after the code, in whole pages.
    pub fn words_bytes(&self) -> u64 {
        (self.all.len() as u64 * WORDS).next_multiple_of(PAGE)
    }

    /// Fills in `code`. Detours whose displaced instructions cannot be moved are refused.
    fn assemble(&mut self, threads: ThreadStates) {
        let near = self.near;
        let slot = |number: usize, detour: &Detour, pages: usize| {
            let at = near.wrapping_add_unsigned((number * SIZE) as u64);
            let words = near.wrapping_add_unsigned(pages as u64 + number as u64 * WORDS);
            Slot::assemble(detour, threads, at, words)
        };
        let pages = |detours: usize| (detours * SIZE).next_multiple_of(PAGE as usize);
        // Which ones can be moved does not depend on the place among the others.
        let most = pages(self.all.len());
        let (fit, unfit): (Vec<_>, Vec<_>) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|detour| slot(0, detour, most).is_some());
        let refused = unfit
            .into_iter()
            .map(|detour| (detour.name, "its first instructions cannot be moved"));
        self.refused.extend(refused);
        let pages = pages(fit.len());
        for mut detour in fit {
            let Some(slot) = slot(self.all.len(), &detour, pages) else {
                continue;
            };
            detour.entry = slot.entry;
            self.code.extend(slot.code);
            self.all.push(detour);
        }
        // Unused code traps.
        self.code.resize(pages, 0xcc);
    }

    /// The jump to write at the address of a detour.
    pub fn jump(&self, number: usize) -> Option<[u8; JUMP]> {
        let detour = self.all.get(number)?;
        let to = (number * SIZE) as u64 + u64::from(detour.entry);
        let to = self.near.wrapping_add_unsigned(to);
        let next = detour.address.wrapping_add(JUMP as u64).cast_signed();
        let distance = i32::try_from(to.wrapping_sub(next)).ok()?;
        let [a, b, c, d] = distance.to_le_bytes();
        Some([0xe9, a, b, c, d])
    }
}

/// A function of the executable's own allocator if its calls cannot be sampled: it has one, and no function of it can have a detour.
pub fn unsampled_allocator(executable: &dyn ReadAt) -> Option<String> {
    let function = super::own_allocator(executable)?;
    let detours = Detours::plan(executable, ThreadStates::ThreadLocal, |_, _| None);
    detours
        .is_ok_and(|detours| detours.all.is_empty())
        .then_some(function)
}

/// The addresses of a file's loaded segments.
fn extent(elf: &Elf<'_>) -> Range<u64> {
    let segments = || elf.loaded_segments();
    let start = segments().map(|s| s.addr).min().unwrap_or_default();
    let end = segments()
        .map(|s| s.addr.saturating_add(s.size_in_memory))
        .max();
    start..end.unwrap_or_default()
}
