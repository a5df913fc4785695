//! Linkage tables (`.plt`) without unwind information, which not all linkers write.
//!
//! They are recognised by their machine code, which the processors' ABIs specify and linkers follow. Section
//! headers are not needed.

use super::rule::{Arch, CfaKind, RA_IN_LINK_REGISTER, Rule};
use super::scan::{Blocks, MAX_SCANNED};
use super::spans::{Source, Span};
use crate::elf::{Elf, u32_at};

/// Size of the longest entry that is matched as a whole, in bytes.
const ENTRY: usize = 16;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// A part of a linkage table, by what its code has pushed on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// Only the return address: an entry that jumps.
    Jump,
    /// One more word from this byte of the entry on: the entry pushes its index and jumps to the header.
    Push(u8),
    /// The header's first instruction.
    Header,
    /// The rest of the header.
    HeaderPushed,
}

impl Linkage {
    /// The unwind rule of this part.
    pub fn rule(self, arch: Arch) -> Rule {
        let (cfa, cfa_offset) = match (arch, self) {
            (Arch::X86_64, Linkage::Jump) => (CfaKind::Sp, 8),
            (Arch::X86_64, Linkage::Push(from)) => (CfaKind::Plt, i32::from(from)),
            (Arch::X86_64, Linkage::Header) => (CfaKind::Sp, 16),
            (Arch::X86_64, Linkage::HeaderPushed) => (CfaKind::Sp, 24),
            (Arch::Aarch64, Linkage::HeaderPushed) => (CfaKind::Sp, 16),
            (Arch::Aarch64, _) => (CfaKind::Sp, 0),
        };
        let in_register = arch == Arch::Aarch64 && self != Linkage::HeaderPushed;
        Rule {
            cfa: cfa as u8,
            flags: if in_register { RA_IN_LINK_REGISTER } else { 0 },
            cfa_offset,
            ra_offset: if in_register { 0 } else { -8 },
            ..Rule::default()
        }
    }
}

/// The linkage tables in uncovered code.
pub fn linkage_tables(elf: &Elf, arch: Arch, gaps: &[(u64, u64)]) -> Vec<Span> {
    let step = match arch {
        Arch::X86_64 => ENTRY as u64,
        Arch::Aarch64 => 4,
    };
    let mut reader = Blocks::default();
    let mut found = Vec::new();
    for &(start, end) in gaps {
        let mut at = start.next_multiple_of(step);
        while at + ENTRY as u64 <= end && reader.scanned <= MAX_SCANNED {
            // Includes the preceding instruction, which distinguishes headers from entries.
            let lead = (at - start).min(4);
            let from = at - lead;
            let Some(code) = reader.at(elf, from, end, ENTRY + lead as usize) else {
                break;
            };
            let mut used = lead as usize;
            while let Some(entry) = code.get(used..used + ENTRY) {
                let here = from + used as u64;
                let parts = match arch {
                    Arch::X86_64 => x86(entry),
                    Arch::Aarch64 => arm(entry, &code[..used]),
                };
                found.extend(parts.into_iter().flatten().map(|(first, to, part)| Span {
                    start: here.saturating_add_signed(first).max(start),
                    end: here + to,
                    source: Source::Linkage(part),
                    entry: 0,
                }));
                used += step as usize;
            }
            at = from + used as u64;
        }
    }
    found
}

/// Parts of an entry: first byte (which may lie before the entry), end, part.
type Parts = [Option<(i64, u64, Linkage)>; 2];

/// Entries begin at multiples of 16, except those of `.plt.got`, which have 8 bytes each.
fn x86(b: &[u8]) -> Parts {
    let jump = |at: usize| {
        let code = b.get(at..).unwrap_or_default();
        code.starts_with(&[0xff, 0x25]) || code.starts_with(&[0xf2, 0xff, 0x25])
    };
    let back = |at: usize| b[at] == 0xe9 || b[at..].starts_with(&[0xf2, 0xe9]);
    let whole = |part| [Some((0, ENTRY as u64, part)), None];
    let protected = b.starts_with(&ENDBR64);
    if b.starts_with(&[0xff, 0x35]) && jump(6) {
        let rest = (6, ENTRY as u64, Linkage::HeaderPushed);
        [Some((0, 6, Linkage::Header)), Some(rest)]
    } else if jump(0) && b[6] == 0x68 && back(11) {
        whole(Linkage::Push(11))
    } else if protected && b[4] == 0x68 && back(9) {
        whole(Linkage::Push(9))
    } else if protected && jump(4) {
        whole(Linkage::Jump)
    } else {
        let short =
            |at: usize| b[at..].starts_with(&[0xff, 0x25]) && b[at + 6..at + 8] == [0x66, 0x90];
        let half = |at: u64| (at as i64, at + 8, Linkage::Jump);
        [short(0).then(|| half(0)), short(8).then(|| half(8))]
    }
}

/// `adrp x16, …; ldr x17, [x16, …]; add x16, x16, …; br x17`. The header first saves `x16` and `x30`;
/// an entry may start with a landing pad (`bti c`).
fn arm(b: &[u8], before: &[u8]) -> Parts {
    const WANTED: [(u32, u32); 4] = [
        (0x9f00_001f, 0x9000_0010),
        (0xffc0_03ff, 0xf940_0211),
        (0xffc0_03ff, 0x9100_0210),
        (u32::MAX, 0xd61f_0220),
    ];
    const SAVE: u32 = 0xa9bf_7bf0;
    const LANDING_PAD: u32 = 0xd503_245f;
    let is = |(i, (mask, want)): (usize, &(u32, u32))| u32_at(b, 4 * i) & mask == *want;
    if !WANTED.iter().enumerate().all(is) {
        return [None, None];
    }
    let end = ENTRY as u64;
    match before.last_chunk::<4>().map(|i| u32::from_le_bytes(*i)) {
        Some(SAVE) => [
            Some((-4, 0, Linkage::Header)),
            Some((0, end, Linkage::HeaderPushed)),
        ],
        Some(LANDING_PAD) => [Some((-4, end, Linkage::Jump)), None],
        _ => [Some((0, end, Linkage::Jump)), None],
    }
}
