//! Branches into the displaced instructions of a function, from anywhere in the file's code.

use std::collections::BTreeMap;

use super::{DISPLACED, Detour};
use crate::elf::{Elf, ElfError};

/// Number of bytes of code to read at once.
const PIECE: usize = 1 << 20;
/// Maximum number of bytes of code to search. In a file with more, every detour counts as branched into.
const MAX_CODE: u64 = 1 << 30;

/// Addresses of the detours into whose displaced instructions a near branch anywhere in the code leads. Every four bytes of the
/// code are taken for a distance: that is more than there are.
pub(super) fn into(elf: &Elf<'_>, detours: &[Detour]) -> Result<Vec<u64>, ElfError> {
    let inside: BTreeMap<u64, &Detour> = detours.iter().map(|d| (d.address, d)).collect();
    let (Some((first, _)), Some((last, _))) = (inside.first_key_value(), inside.last_key_value())
    else {
        return Ok(Vec::new());
    };
    let possible = *first..last.saturating_add(DISPLACED as u64);
    let code: u64 = elf.code_segments().map(|segment| segment.size).sum();
    if code > MAX_CODE {
        return Ok(inside.into_keys().collect());
    }
    let mut found = Vec::new();
    for segment in elf.code_segments() {
        let mut at = 0;
        while at < segment.size {
            let size = (segment.size - at).min(PIECE as u64 + 5) as usize;
            let mut code = vec![0; size];
            elf.read_at(&mut code, segment.offset.saturating_add(at))?;
            let address = segment.addr.wrapping_add(at);
            for (n, bytes) in code.windows(6).enumerate() {
                let [one, two, a, b, c, d] = *bytes else {
                    continue;
                };
                let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
                let to = address
                    .wrapping_add(n as u64 + 6)
                    .wrapping_add_signed(distance);
                if !possible.contains(&to)
                    || !(matches!(two, 0xe8 | 0xe9) || one == 0x0f && two & 0xf0 == 0x80)
                {
                    continue;
                }
                if let Some((start, detour)) = inside.range(..to).next_back()
                    && to - start < detour.displaced.len() as u64
                {
                    found.push(*start);
                }
            }
            at += PIECE as u64;
        }
    }
    Ok(found)
}
