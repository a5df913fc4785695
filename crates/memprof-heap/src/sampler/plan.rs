//! The plan of detours that is appended to a copy of the library, and what became of it in a process.
//! `sampler/detours.h` has the same structures in C.

use memprof_code::allocators::{Detour, Detours};

/// Size of a page of the file, in bytes.
pub(super) const PAGE: usize = 4096;
/// Number of bytes of displaced instructions in the plan.
const DISPLACED: usize = 16;
/// `MAX_DETOURS` in `detours.h`.
const MAX: usize = 256;

/// The plan's bytes, and how many of them are before the code.
pub(super) struct PlanBytes {
    pub all: Vec<u8>,
    pub header: u64,
}

/// The plan of these detours, for a page boundary of the file; `None` if there are none, or too many.
pub(super) fn bytes(detours: &Detours) -> Option<PlanBytes> {
    let count = detours.all.len();
    if count == 0 || count > MAX {
        return None;
    }
    let mut all = Vec::new();
    let words = [
        count as u64,
        detours.near.cast_unsigned(),
        0, // The position of the code, below.
        detours.code.len() as u64,
        detours.words_bytes(),
    ];
    all.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    for detour in &detours.all {
        all.extend(function(detour));
    }
    let header = all.len() as u64;
    all.resize(all.len().next_multiple_of(PAGE), 0);
    let code = (all.len() as u64).to_le_bytes();
    all[16..24].copy_from_slice(&code);
    all.extend_from_slice(&detours.code);
    Some(PlanBytes { all, header })
}

/// `struct planned`.
fn function(detour: &Detour) -> Vec<u8> {
    let mut bytes = detour.address.to_le_bytes().to_vec();
    bytes.extend(detour.arguments);
    bytes.extend([detour.kind as u8, detour.displaced.len() as u8, 0, 0, 0]);
    let mut displaced = detour.displaced.clone();
    displaced.resize(DISPLACED, 0);
    bytes.extend(displaced);
    bytes
}

/// What became of the detours in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetoursPlaced {
    /// Whether they are in place.
    pub state: DetoursState,
    /// Detours whose code is in place.
    pub count: u64,
    /// What is added to the executable's addresses in the process.
    pub base: u64,
}

/// Whether detours are in place, or why not. The numbers are those of `enum detours_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetoursState {
    /// The library had no plan.
    None,
    /// The process runs another executable, or its functions were changed already.
    Other,
    /// The code is in place. The entries are unchanged.
    Prepared,
    /// The functions lead to the library.
    Placed,
    /// A step failed. The text says which one, with the number of the error.
    Failed(&'static str, i32),
}

impl DetoursState {
    /// The number of [`DetoursState::Placed`].
    pub const PLACED: u64 = 3;
}

impl DetoursPlaced {
    /// Size of the structure in the target, in bytes.
    pub const SIZE: usize = 40;

    /// Decodes the structure; `None` if the state is unknown.
    pub fn parse(bytes: &[u8; DetoursPlaced::SIZE]) -> Option<DetoursPlaced> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| u64::from_ne_bytes(words[n]);
        let failed = |what| DetoursState::Failed(what, i32::try_from(word(3)).unwrap_or_default());
        let state = match word(0) {
            0 => DetoursState::None,
            1 => DetoursState::Other,
            2 => DetoursState::Prepared,
            DetoursState::PLACED => DetoursState::Placed,
            4 => failed("the library's file cannot be mapped"),
            5 => failed("there is other memory where the code of the detours belongs"),
            6 => failed("the kernel does not let the executable's code be changed"),
            7 => failed("it had several threads already"),
            _ => return None,
        };
        Some(DetoursPlaced {
            state,
            count: word(1),
            base: word(4),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_code::allocators::DetourKind;

    #[test]
    fn the_code_begins_at_a_page() {
        let detour = Detour {
            name: "malloc".into(),
            address: 0x1234,
            displaced: vec![0x55, 0x48, 0x89, 0xe5, 0x50],
            kind: DetourKind::Frees,
            arguments: [0xff, 0xff, 0],
        };
        let detours = Detours {
            all: vec![detour],
            near: -0x12000,
            code: vec![0xcc; PAGE],
            refused: Vec::new(),
        };
        let plan = bytes(&detours).unwrap();
        assert_eq!(plan.header, 40 + 32);
        assert_eq!(plan.all.len(), 2 * PAGE);
        assert_eq!(plan.all[16..24], (PAGE as u64).to_le_bytes());
        assert_eq!(plan.all[40..48], 0x1234_u64.to_le_bytes());
        assert_eq!(plan.all[48..53], [0xff, 0xff, 0, 5, 5]);
        assert_eq!(plan.all[PAGE], 0xcc);
        assert!(bytes(&Detours::default()).is_none());
    }
}
