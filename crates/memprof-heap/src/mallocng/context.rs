//! Finds mallocng's context by the secret that it shares with the areas of descriptions.

use super::super::memory::Memory;
use super::super::module_data::module_data;
use super::{AREA, CLASSES};
use memprof_sys::residency::Vma;

/// Offsets in the context, without the page size that processors with several page sizes have behind the secret.
const INITIALIZED: u64 = 8;
const NEXT_DESCRIPTION: u64 = 24;
const FIRST_AREA: u64 = 56;
const LAST_AREA: u64 = 64;
const USAGE: u64 = 80 + 8 * CLASSES as u64;

/// The context.
#[derive(Debug)]
pub(super) struct Context<'a> {
    /// Name of the file that contains the allocator.
    pub module: &'a str,
    /// The word at the beginning of each area.
    pub secret: u64,
    /// Address of the first area.
    pub first: u64,
    /// Address of the last area, in which descriptions from `next` on were never used.
    pub last: u64,
    pub next: u64,
    /// Number of slots in each size class.
    pub usage: Vec<u64>,
}

/// Finds all contexts.
pub(super) fn find<'a>(memory: &Memory, vmas: &'a [Vma]) -> Vec<Context<'a>> {
    let mut found = Vec::new();
    for (start, end, module) in module_data(vmas) {
        for run in memory.runs_in(start, end) {
            let bytes = memory.from(run.start).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(run.len() as usize)];
            let words = bytes.as_chunks::<8>().0;
            let is_area = |word: &[u8; 8]| {
                let word = u64::from_le_bytes(*word);
                word != 0 && word.is_multiple_of(AREA)
            };
            for (index, pair) in words.windows(2).enumerate() {
                if !pair.iter().all(is_area) {
                    continue;
                }
                let at = run.start + 8 * index as u64;
                // With and without the page size.
                let contexts = [0, 8].into_iter();
                found.extend(contexts.filter_map(|more| context(memory, at, more, module)));
            }
        }
    }
    found
}

/// The context whose addresses of the first and last area are at `at`.
fn context<'a>(memory: &Memory, at: u64, more: u64, module: &'a str) -> Option<Context<'a>> {
    let start = at.checked_sub(FIRST_AREA + more)?;
    let word = |offset: u64| memory.word(start + more + offset);
    let (secret, first, last) = (memory.word(start)?, word(FIRST_AREA)?, word(LAST_AREA)?);
    let fits = secret != 0
        && memory.half(start + more + INITIALIZED)? == 1
        && memory.word(first)? == secret
        && memory.word(last)? == secret;
    let usage = (0..CLASSES as u64).map(|class| word(USAGE + 8 * class));
    fits.then_some(Context {
        module,
        secret,
        first,
        last,
        next: word(NEXT_DESCRIPTION)?,
        usage: usage.collect::<Option<_>>()?,
    })
}
