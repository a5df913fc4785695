//! Classifies the contents of chunks: text, addresses, zeroes.

use super::memory::Memory;
use memprof_sys::residency::Vma;

/// Minimum length of text, in bytes. A word that is an address has at most six nonzero bytes.
const MIN_TEXT: usize = 8;
/// Maximum number of bytes to examine for text.
const TEXT: usize = 4096;
/// Maximum number of bytes by which an allocation is rounded up.
const ROUNDED: usize = 23;
/// Number of words to examine for addresses.
const WORDS: usize = 16;

/// The apparent type of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// UTF-8 text, up to a NUL or the end.
    Text,
    /// More than half of the first words are addresses of mapped memory.
    Pointers,
    /// Only zeroes. Memory that was never written to is zero.
    Zeroes,
    /// Anything else.
    Other,
}

/// The classifier.
#[derive(Debug)]
pub(super) struct Looks {
    /// Readable memory, as ranges of first address and end.
    mapped: Vec<(u64, u64)>,
    /// Index of the range that contained the previous address.
    last: usize,
}

impl Looks {
    pub(super) fn new(vmas: &[Vma]) -> Looks {
        let mut mapped: Vec<(u64, u64)> = Vec::new();
        for vma in vmas.iter().filter(|vma| vma.perms.read) {
            match mapped.last_mut() {
                Some(last) if last.1 == vma.start.0 => last.1 = vma.end.0,
                _ => mapped.push((vma.start.0, vma.end.0)),
            }
        }
        Looks { mapped, last: 0 }
    }

    /// Classifies the contents from `start` to `end`.
    pub(super) fn look(&mut self, memory: &Memory, start: u64, end: u64) -> Look {
        if is_zero(memory, start, end) {
            return Look::Zeroes;
        }
        let size = end.saturating_sub(start).min(TEXT as u64) as usize;
        let bytes = memory.from(start).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(size)];
        if is_text(bytes) {
            return Look::Text;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let words = &words[..words.len().min(WORDS)];
        let addresses = words
            .iter()
            .filter(|word| self.is_mapped(u64::from_le_bytes(**word)));
        match 2 * addresses.count() > words.len() {
            true => Look::Pointers,
            false => Look::Other,
        }
    }

    fn is_mapped(&mut self, addr: u64) -> bool {
        let contains = |range: &(u64, u64)| range.0 <= addr && addr < range.1;
        if self.mapped.get(self.last).is_some_and(contains) {
            return true;
        }
        let index = self.mapped.partition_point(|range| range.1 <= addr);
        let found = self.mapped.get(index).is_some_and(contains);
        if found {
            self.last = index;
        }
        found
    }
}

fn is_zero(memory: &Memory, start: u64, end: u64) -> bool {
    memory.runs_in(start, end).all(|run| {
        let bytes = memory.from(run.start).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(run.len() as usize)];
        // Folding blocks of bytes takes a tenth of the time of a bytewise test.
        let mut some = bytes.chunks(64);
        some.all(|some| some.iter().fold(0, |all, byte| all | byte) == 0)
    })
}

/// Number of bytes before the first control character that does not occur in text.
fn before_control(bytes: &[u8]) -> usize {
    let is_control = |byte: &u8| matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 0x7f);
    // Whole blocks at once, for speed, as in `is_zero`.
    let (blocks, rest) = bytes.as_chunks::<32>();
    let has_control = |block: &[u8; 32]| block.iter().fold(false, |any, b| any | is_control(b));
    let whole = blocks.iter().position(has_control);
    let block = whole.map_or(rest, |block| &blocks[block]);
    let within = block.iter().position(is_control).unwrap_or(block.len());
    32 * whole.unwrap_or(blocks.len()) + within
}

/// Whether contents begin with text that a NUL or the end of the contents follows.
fn is_text(bytes: &[u8]) -> bool {
    let len = before_control(bytes);
    if len < MIN_TEXT {
        return false;
    }
    let ends = len == bytes.len() || bytes[len] == 0 || bytes.len() - len <= ROUNDED;
    let valid = match std::str::from_utf8(&bytes[..len]) {
        Ok(_) => true,
        // A character is cut off at the end, or followed by remains of earlier contents.
        Err(error) => {
            let valid = error.valid_up_to();
            valid >= MIN_TEXT && bytes.len() - valid <= ROUNDED
        }
    };
    ends && valid
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_sys::ids::Addr;
    use memprof_sys::residency::{Backing, Perms};

    fn look(bytes: &[u8]) -> Look {
        let vma = Vma {
            start: Addr(0x1000),
            end: Addr(0x2000),
            perms: Perms {
                read: true,
                ..Perms::default()
            },
            file_offset: 0,
            dev: (0, 0),
            ino: 0,
            name: String::new(),
            deleted: false,
            backing: Backing::Anon,
        };
        let memory = Memory::synthetic(&[(0x1000, bytes)]);
        Looks::new(&[vma]).look(&memory, 0x1000, 0x1000 + bytes.len() as u64)
    }

    fn padded(text: &str, fill: u8, size: usize) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(size, fill);
        bytes
    }

    #[test]
    fn text_ends_with_a_nul_or_with_the_contents() {
        assert_eq!(look(&padded("a line\tof\ntext", 0, 200)), Look::Text);
        assert_eq!(look(&padded("Grüße aus Übersee", 0, 40)), Look::Text);
        assert_eq!(look(&padded("all of it", b'x', 40)), Look::Text);
        assert_eq!(
            look(&padded("with something behind it", 0x81, 40)),
            Look::Text
        );
        assert_eq!(look(&padded("with something behind it", 1, 40)), Look::Text);
        assert_eq!(look(&padded("with much behind it", 1, 200)), Look::Other);
        assert_eq!(look(&padded("with much behind it", 0x81, 200)), Look::Other);
        assert_eq!(look(&padded("short", 0, 24)), Look::Other);
        assert_eq!(look(&padded("cut in a character: ü", 0, 22)), Look::Text);
        assert_eq!(look(&padded("", b'x', 3 * TEXT)), Look::Text);
    }

    #[test]
    fn addresses_are_more_than_half_of_the_words() {
        let words = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            look(&bytes)
        };
        assert_eq!(words(&[0x1008, 5, 0x1ff8]), Look::Pointers);
        assert_eq!(words(&[0x1008, 5, 0x2000]), Look::Other);
        assert_eq!(words(&[0x1008, 5, 0x1ff8, 0]), Look::Other);
    }

    #[test]
    fn zeroes() {
        assert_eq!(look(&[0; 100]), Look::Zeroes);
        let mut last = [0; 100];
        last[99] = 1;
        assert_eq!(look(&last), Look::Other);
        let nothing = Memory::default();
        assert_eq!(Looks::new(&[]).look(&nothing, 0, 100), Look::Zeroes);
    }
}
