//! mallocng, the allocator of musl since 1.2.1, read from a copy of a process's memory without symbols.
//!
//! It takes memory in groups of up to 32 slots of one size (`groups`), each with a description in one of its areas of
//! descriptions, which all begin with the process's secret. Its context, in the data of the C library or of a static
//! program, leads to the areas (`context`). A group lies in pages of its own, in a slot of another group, or in unused
//! data of a library.
//!
//! Every structure is verified: all areas have the secret, each group refers to its description, groups lie in their
//! mappings or slots, and the slots of each size class add up to the context's counter.
//!
//! Layout: musl 1.2.1 to 1.2.5, according to `meta.h`, 64-bit.

mod context;
mod groups;

use super::snapshot::Snapshot;
use super::spans::{Refusal, SpanMap, refuse};

/// Name of the allocator.
pub(crate) const NAME: &str = "musl";

/// Size and alignment of the areas of descriptions, in bytes.
const AREA: u64 = 4096;
/// Unit of sizes, and size of a group's header, in bytes.
const UNIT: u64 = 16;
/// Number of size classes.
const CLASSES: usize = 48;
/// Sizes of the slots of each class, in units.
const SIZES: [u16; CLASSES] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
];

/// Reads the heap. `None` if there is none.
///
/// # Errors
/// The structures are inconsistent: the process was stopped while mallocng changed them, they are damaged, or the
/// release has another layout.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<SpanMap>, Refusal> {
    let (memory, vmas) = (&snapshot.memory, &snapshot.vmas);
    let mut contexts = context::find(memory, vmas);
    let Some(context) = contexts.pop() else {
        return Ok(None);
    };
    if !contexts.is_empty() {
        return refuse!("the process has several copies of it; memprof reads one");
    }
    let mut map = SpanMap::default();
    context.module.clone_into(&mut map.module);
    let groups = groups::read(memory, &context, &mut map)?;
    groups::add(memory, vmas, &groups, &mut map)?;
    map.note = Some(
        "Blocks count with the whole size of their slots. Slots that were never used are free.",
    );
    Ok(Some(map))
}
