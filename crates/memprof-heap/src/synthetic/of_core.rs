//! Cores of synthetic heaps, with damage.

use std::fs::File;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{Image, split};
use crate::core_file::{CoreWriter, measure_core_bytes};
use crate::snapshot::Snapshot;
use memprof_sys::target_file::ReadAt;

/// Bytes of the encoding of one change.
const CHANGE: usize = 8;
/// Part of a core with its headers and notes, in bytes.
const HEAD: usize = 4096;
/// Numbers that are likely to be handled wrongly.
const VALUES: [u64; 8] = [
    0,
    1,
    0xfff,
    0xffff,
    1 << 31,
    1 << 47,
    u64::MAX >> 1,
    u64::MAX,
];

/// The snapshot of a valid heap with chunks of these sizes, with the names and registers that a core has.
pub(crate) fn snapshot(sizes: &[u8]) -> Snapshot {
    let mut snapshot = Image::new(sizes).snapshot();
    for vma in snapshot.vmas.iter_mut().filter(|vma| vma.ino != 0) {
        vma.name = "/nowhere/libsynthetic.so".to_owned();
    }
    for thread in &mut snapshot.threads {
        thread.words.resize(27, 0);
        (thread.words[19], thread.words[21]) = (thread.stack_pointer, thread.thread_pointer);
    }
    snapshot
}

/// The core of a snapshot; without memprof's own notes if `plain`. `None` if there is no memory for it.
pub(crate) fn core(snapshot: &Snapshot, plain: bool) -> Option<Vec<u8>> {
    let file = memfd_create(c"core", MFdFlags::MFD_CLOEXEC).ok()?;
    let file = File::from(file);
    CoreWriter::synthetic(&file, snapshot).ok()?;
    let mut bytes = vec![0; usize::try_from(file.size().ok()?).ok()?];
    file.fill(&mut bytes, 0).ok()?;
    if plain {
        while let Some(at) = memchr::memmem::find(&bytes[..HEAD.min(bytes.len())], b"memprof\0") {
            bytes[at] = b'M';
        }
    }
    Some(bytes)
}

/// Reads the core of a synthetic heap that is damaged according to the bytes. Returns whether it could be read.
///
/// # Panics
/// Sums that must be equal are not.
pub fn examine(bytes: &[u8]) -> bool {
    let (sizes, changes) = split(bytes);
    let plain = changes.first().is_some_and(|byte| byte & 1 == 1);
    let Some(mut core) = core(&snapshot(sizes), plain) else {
        return false;
    };
    for change in changes.as_chunks::<CHANGE>().0 {
        damage(&mut core, change);
    }
    let file = memfd_create(c"damaged", MFdFlags::MFD_CLOEXEC).map(File::from);
    let Ok(file) = file else {
        return false;
    };
    if std::os::unix::fs::FileExt::write_all_at(&file, &core, 0).is_err() {
        return false;
    }
    let Ok(heap) = measure_core_bytes(&file, 3) else {
        return false;
    };
    let rows: u64 = heap.rows.iter().map(|row| row.resident).sum();
    let others: u64 = heap.others.iter().map(|row| row.resident).sum();
    assert_eq!(rows + others, heap.anonymous, "{heap:#?}");
    true
}

/// Changes a word or a byte in the headers or anywhere, or cuts the core off.
fn damage(core: &mut Vec<u8>, change: &[u8; CHANGE]) {
    let [kind, value, at @ ..] = *change;
    let at = at
        .iter()
        .fold(0_usize, |at, byte| at << 8 | usize::from(*byte));
    let range = if kind & 2 == 0 { HEAD } else { core.len() };
    let at = at % range.clamp(1, core.len().max(1));
    match kind >> 2 & 7 {
        0..=2 => {
            let number = VALUES[usize::from(value) % VALUES.len()].to_le_bytes();
            let size = [1, 2, 4, 8][usize::from(value >> 4) % 4];
            let at = at / size * size;
            if let Some(bytes) = core.get_mut(at..at + size) {
                bytes.copy_from_slice(&number[..size]);
            }
        }
        3..=5 => {
            if let Some(byte) = core.get_mut(at) {
                *byte ^= 1 << (value % 8);
            }
        }
        6 => {
            if let Some(byte) = core.get_mut(at) {
                *byte = byte.wrapping_add(value);
            }
        }
        _ => core.truncate(at),
    }
}
