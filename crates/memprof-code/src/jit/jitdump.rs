//! Jitdump files: binary records about each piece of code, in the format of perf's `jitdump-specification.txt`.
//! Unwinding information in them is not used.

use super::ranges::{Code, Lines};

/// "JiTD" in the processor's byte order.
const MAGIC: u32 = 0x4A69_5444;
const VERSION: u32 = 1;
/// Sizes in bytes.
const FILE_HEADER: u64 = 40;
const RECORD_HEADER: u64 = 16;
/// The fixed part of a record about new code, behind the record's header.
const LOAD: usize = 40;
const MOVE: usize = 48;
/// Maximum length of a name, in bytes; the rest is cut.
const LONGEST: usize = 1024;
/// Maximum size of a record of lines that is read, in bytes, and of lines that are kept.
const DEBUG: usize = 256 << 10;
const MAX_LINES: usize = 8192;
/// Records read per call.
const AT_ONCE: usize = 20_000;
/// In the header's flags: timestamps are not in the clock's nanoseconds.
const ARCH_TIMESTAMP: u64 = 1;

/// The position in a jitdump file, and what is known of the next piece of code.
#[derive(Debug, Default)]
pub struct Jitdump {
    at: u64,
    /// Whether timestamps are those of `CLOCK_MONOTONIC`, in ns.
    timed: bool,
    /// The lines of the code at this address, whose record comes next.
    lines: Option<(u64, Lines)>,
    /// Whether nothing more is read: the file is malformed, or closed.
    ended: bool,
    /// Malformed records or headers.
    pub malformed: u64,
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
pub enum Record {
    /// New code: its start, its size in bytes.
    Load(u64, u64, Code),
    /// Code was moved: from where, to where.
    Move(u64, u64),
}

impl Jitdump {
    /// Reads the records that are complete in a file of `size` bytes; calls `each` with them and their time, in ns of
    /// `CLOCK_MONOTONIC`, if that is known. `read_at` fills the buffer from a position on, or fails.
    /// Returns whether there may be more to read now.
    pub fn read(
        &mut self,
        size: u64,
        mut read_at: impl FnMut(&mut [u8], u64) -> bool,
        mut each: impl FnMut(Record, Option<u64>),
    ) -> bool {
        if self.at == 0 && !self.ended && size >= FILE_HEADER {
            let mut header = [0; FILE_HEADER as usize];
            if !read_at(&mut header, 0) {
                return false;
            }
            self.open(&header);
        }
        if self.at == 0 {
            return false;
        }
        for _ in 0..AT_ONCE {
            let mut header = [0; RECORD_HEADER as usize];
            let body = self.at.saturating_add(RECORD_HEADER);
            if self.ended || body > size || !read_at(&mut header, self.at) {
                return false;
            }
            let total = u64::from(u32_at(&header, 4));
            if total < RECORD_HEADER {
                self.refuse();
                return false;
            }
            let end = self.at.saturating_add(total);
            if end > size {
                return false;
            }
            let time = self.timed.then(|| u64_at(&header, 8));
            let length = (total - RECORD_HEADER) as usize;
            let mut part = |most: usize| {
                let mut bytes = vec![0; length.min(most)];
                read_at(&mut bytes, body).then_some(bytes)
            };
            match u32_at(&header, 0) {
                0 => match part(LOAD + LONGEST + 1).and_then(|b| self.load(&b)) {
                    Some(record) => each(record, time),
                    None => self.malformed += 1,
                },
                1 => match part(MOVE).filter(|b| b.len() == MOVE) {
                    Some(b) => each(Record::Move(u64_at(&b, 16), u64_at(&b, 24)), time),
                    None => self.malformed += 1,
                },
                2 if length <= DEBUG => match part(DEBUG) {
                    Some(bytes) => self.lines = lines(&bytes),
                    None => self.malformed += 1,
                },
                3 => self.ended = true,
                // Unwinding information, and what later versions add.
                _ => {}
            }
            self.at = end;
        }
        true
    }

    fn open(&mut self, header: &[u8]) {
        let size = u64::from(u32_at(header, 8));
        if u32_at(header, 0) != MAGIC || u32_at(header, 4) != VERSION || size < FILE_HEADER {
            self.refuse();
            return;
        }
        self.timed = u64_at(header, 32) & ARCH_TIMESTAMP == 0;
        self.at = size;
    }

    fn refuse(&mut self) {
        self.malformed += 1;
        self.ended = true;
    }

    fn load(&mut self, body: &[u8]) -> Option<Record> {
        let name = body.get(LOAD..)?;
        let length = name
            .iter()
            .position(|b| *b == 0)
            .unwrap_or(name.len().min(LONGEST));
        let (addr, size) = (u64_at(body, 16), u64_at(body, 24));
        let lines = self.lines.take().filter(|(of, _)| *of == addr);
        if length == 0 {
            return None;
        }
        let code = Code {
            name: String::from_utf8_lossy(&name[..length]).into(),
            lines: lines.map(|(_, lines)| lines),
        };
        Some(Record::Load(addr, size, code))
    }
}

/// The lines of one piece of code; `None` if there are none. Lines of other files than the first, of inlined functions, are
/// left out.
fn lines(body: &[u8]) -> Option<(u64, Lines)> {
    /// An entry before its name: address, line, discriminator.
    const ENTRY: usize = 16;
    let start = body.get(..16).map(|b| u64_at(b, 0))?;
    let number = u64_at(body, 8);
    let mut rest = &body[16..];
    let mut file: Option<&[u8]> = None;
    let mut name: &[u8] = b"";
    let mut at = Vec::new();
    for _ in 0..number.min(MAX_LINES as u64) {
        let Some((entry, behind)) = rest.split_at_checked(ENTRY) else {
            break;
        };
        let Some(length) = behind.iter().position(|b| *b == 0) else {
            break;
        };
        rest = &behind[length + 1..];
        // "Same as the previous name."
        if behind[..length] != [0xff] {
            name = &behind[..length.min(LONGEST)];
        }
        let offset = u64_at(entry, 0).wrapping_sub(start);
        if let Ok(offset) = u32::try_from(offset)
            && *file.get_or_insert(name) == name
        {
            at.push((offset, u32_at(entry, 8)));
        }
    }
    at.sort_by_key(|(offset, _)| *offset);
    let file = file.filter(|file| !file.is_empty() && !at.is_empty())?;
    let lines = Lines {
        file: String::from_utf8_lossy(file).into(),
        at: at.into(),
    };
    Some((start, lines))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(of: &[u64]) -> Vec<u8> {
        of.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    fn header() -> Vec<u8> {
        let mut bytes: Vec<u8> = [MAGIC, VERSION, 40, 62, 0, 7]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        bytes.extend(words(&[1, 0]));
        bytes
    }

    fn record(kind: u32, time: u64, body: &[u8]) -> Vec<u8> {
        let size = (RECORD_HEADER as usize + body.len()) as u32;
        let mut bytes = [kind.to_ne_bytes(), size.to_ne_bytes()].concat();
        bytes.extend(time.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn load(addr: u64, size: u64, name: &str) -> Vec<u8> {
        let mut body = words(&[0, addr, addr, size, 1]);
        body.extend(name.as_bytes());
        body.push(0);
        body.extend(vec![0x90; size as usize]);
        body
    }

    fn read(dump: &mut Jitdump, bytes: &[u8]) -> Vec<(Record, Option<u64>)> {
        let mut got = Vec::new();
        let read_at = |to: &mut [u8], at: u64| {
            let from = bytes.get(at as usize..).and_then(|b| b.get(..to.len()));
            from.map(|from| to.copy_from_slice(from)).is_some()
        };
        dump.read(bytes.len() as u64, read_at, |record, time| {
            got.push((record, time))
        });
        got
    }

    #[test]
    fn records_as_the_specification_has_them() {
        let mut bytes = header();
        let mut debug = words(&[0x1000, 3]);
        for (addr, line, name) in [
            (0x1000u64, 5u32, &b"/a.py\0"[..]),
            (0x1004, 6, b"/b.py\0"),
            (0x1008, 7, b"/a.py\0"),
        ] {
            debug.extend(addr.to_ne_bytes());
            debug.extend(line.to_ne_bytes());
            debug.extend([0; 4]);
            debug.extend(name);
        }
        bytes.extend(record(2, 10, &debug));
        bytes.extend(record(4, 10, &[0; 24]));
        bytes.extend(record(0, 11, &load(0x1000, 16, "f")));
        bytes.extend(record(0, 12, &load(0x2000, 16, "g")));
        bytes.extend(record(1, 13, &words(&[0, 0x2000, 0x2000, 0x3000, 16, 2])));
        let cut = bytes.len();
        bytes.extend(record(3, 14, &[]));
        bytes.extend(record(0, 15, &load(0x4000, 16, "after the end")));

        let code = |name: &str, lines| Code {
            name: name.into(),
            lines,
        };
        let lines = Lines {
            file: "/a.py".into(),
            at: [(0, 5), (8, 7)].into(),
        };
        let want = vec![
            (Record::Load(0x1000, 16, code("f", Some(lines))), Some(11)),
            (Record::Load(0x2000, 16, code("g", None)), Some(12)),
            (Record::Move(0x2000, 0x3000), Some(13)),
        ];
        let mut whole = Jitdump::default();
        assert_eq!(read(&mut whole, &bytes), want);
        assert!(whole.ended && whole.malformed == 0);
        // It arrives byte by byte: no record is read before it is complete, none twice.
        let (mut dump, mut got) = (Jitdump::default(), Vec::new());
        for end in 0..=cut {
            got.extend(read(&mut dump, &bytes[..end]));
        }
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_no_jitdump_ends_the_reading() {
        let mut other = header();
        other[0] ^= 1;
        for bytes in [other, [header(), words(&[0, 0])].concat()] {
            let mut dump = Jitdump::default();
            assert!(read(&mut dump, &bytes).is_empty());
            assert_eq!((dump.malformed, dump.ended), (1, true));
        }
        // A record without a name is left out; the next one counts.
        let bytes = [
            header(),
            record(0, 1, &[0; 8]),
            record(0, 2, &load(16, 1, "")),
            record(0, 3, &load(16, 1, "f")),
        ]
        .concat();
        let mut dump = Jitdump::default();
        assert_eq!((read(&mut dump, &bytes).len(), dump.malformed), (1, 2));
    }

    #[test]
    fn timestamps_of_another_clock_are_not_used() {
        let mut bytes = header();
        bytes[32] = 1;
        bytes.extend(record(0, 11, &load(0x1000, 16, "f")));
        assert_eq!(read(&mut Jitdump::default(), &bytes)[0].1, None);
    }
}
