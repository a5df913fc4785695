//! The plan of detours that is appended to a copy of the library, and their state in a process.
//! `sampler/detours.h` has the same structures in C.

use std::io;

use memprof_code::allocators::{Detour, Detours};

/// Size of a page of the file, in bytes.
pub(super) const PAGE: usize = 4096;
/// Number of bytes of displaced instructions in the plan.
const DISPLACED: usize = 16;
/// `MAX_DETOURS` in `detours.h`.
const MAX: usize = 256;

/// The plan's bytes, how many of them the library reads, and where the code begins.
pub(super) struct PlanBytes {
    pub all: Vec<u8>,
    pub header: u64,
    pub code: u64,
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
    let code = all.len() as u64;
    all[16..24].copy_from_slice(&code.to_le_bytes());
    all.extend_from_slice(&detours.code);
    Some(PlanBytes { all, header, code })
}

/// `struct planned`.
fn function(detour: &Detour) -> Vec<u8> {
    let mut bytes = detour.address.to_le_bytes().to_vec();
    bytes.extend(detour.arguments);
    let length = detour.displaced.len() as u8;
    bytes.extend([detour.kind as u8, length, detour.entry, 0, 0]);
    let mut displaced = detour.displaced.clone();
    displaced.resize(DISPLACED, 0);
    bytes.extend(displaced);
    bytes
}

/// The detours of a process, as the library describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetoursPlaced {
    /// Their state.
    pub state: DetoursState,
    /// Detours whose code is in place.
    pub count: u64,
    /// The load bias of the executable.
    pub base: u64,
    /// Distance of a thread's state in the library from the thread's address, in bytes; 0 in a process without a loader.
    pub thread_state: u64,
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
    /// A step failed, with the number of the error; 0 if no system call failed.
    Failed(FailedStep, i32),
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailedStep {
    /// Mapping the plan.
    #[error("the library's file cannot be mapped")]
    File,
    /// Mapping the code.
    #[error("the code of the detours cannot be mapped near the executable")]
    Room,
    /// Writing the jumps.
    #[error("the kernel does not let the executable's code be changed")]
    Write,
    /// Making sure that no other thread runs the code.
    #[error("the process had several threads already")]
    Threads,
}

impl DetoursState {
    /// Why the detours are not in use; `None` if no step failed.
    pub fn failure(self) -> Option<String> {
        match self {
            DetoursState::Failed(step, 0) => Some(step.to_string()),
            DetoursState::Failed(step, number) => {
                Some(format!("{step}: {}", io::Error::from_raw_os_error(number)))
            }
            _ => None,
        }
    }

    /// The number of [`DetoursState::Prepared`].
    pub const PREPARED: u64 = 2;
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
        let failed = |step| DetoursState::Failed(step, i32::try_from(word(2)).unwrap_or_default());
        let state = match word(0) {
            0 => DetoursState::None,
            1 => DetoursState::Other,
            DetoursState::PREPARED => DetoursState::Prepared,
            DetoursState::PLACED => DetoursState::Placed,
            4 => failed(FailedStep::File),
            5 => failed(FailedStep::Room),
            6 => failed(FailedStep::Write),
            7 => failed(FailedStep::Threads),
            _ => return None,
        };
        Some(DetoursPlaced {
            state,
            count: word(1),
            base: word(3),
            thread_state: word(4),
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
            entry: 77,
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
        assert_eq!(plan.all[48..54], [0xff, 0xff, 0, 5, 5, 77]);
        assert_eq!(plan.all[PAGE], 0xcc);
        assert!(bytes(&Detours::default()).is_none());
    }
}
