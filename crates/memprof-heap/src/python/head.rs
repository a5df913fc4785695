//! The head of each object (`PyObject`): its references and its type.

use super::super::memory::Memory;

/// The layout of heads, which depends on the build of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// With the global interpreter lock: a count of references, and the type.
    WithLock,
    /// Without it: the thread that owns the object, flags, a mutex, the counts of that thread and of all others, and the type.
    FreeThreaded,
}

/// Offsets in the head of a free-threaded build: flags and mutex, the owner's references, those of others.
const FLAGS: u64 = 8;
const OWN_REFERENCES: u64 = 12;
const REFERENCES: u64 = 16;
/// Bits of a mutex that may be set.
const MUTEX: u32 = 3;

impl Head {
    pub(super) const ALL: [Head; 2] = [Head::WithLock, Head::FreeThreaded];

    /// Size in bytes.
    pub(super) fn size(self) -> u64 {
        match self {
            Head::WithLock => 16,
            Head::FreeThreaded => 32,
        }
    }

    /// Bytes of the links that the garbage collector has in front of an object. Without the lock it has none.
    pub(super) fn links(self) -> u64 {
        match self {
            Head::WithLock => 16,
            Head::FreeThreaded => 0,
        }
    }

    /// Address of the type of the object at an address.
    pub(super) fn type_of(self, memory: &Memory, at: u64) -> Option<u64> {
        memory.word(at.checked_add(self.size() - 8)?)
    }

    /// Whether anything refers to the object at an address. `None` if no object has such a head.
    pub(super) fn is_referenced(self, memory: &Memory, at: u64) -> Option<bool> {
        match self {
            Head::WithLock => {
                let references = memory.word(at)?;
                // Since 3.14 the highest bits are flags. A pointer has some of the middle bits set.
                (references >> 32 & 0xffff == 0).then_some(references & 0xffff_ffff != 0)
            }
            Head::FreeThreaded => {
                let mutex = memory.half(at + FLAGS)? >> 16 & 0xff;
                let own = memory.half(at + OWN_REFERENCES)?;
                // The lowest two bits are flags.
                let others = memory.word(at + REFERENCES)? >> 2;
                (mutex & !MUTEX == 0).then_some(own != 0 || others != 0)
            }
        }
    }
}
