//! Perf maps: text files in which a runtime writes a line `START SIZE NAME` for each piece of code, in hexadecimal.

use super::ranges::Code;

/// Maximum length of a name, in bytes; the rest is cut.
const LONGEST: usize = 1024;
/// Bytes of a line before its name, at most: two numbers with `0x` and two spaces.
const NUMBERS: usize = 40;

/// Splits the bytes of a perf map, which arrive in pieces, into lines.
#[derive(Debug, Default)]
pub struct PerfMap {
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    /// Whether the rest of that line is skipped: it is too long.
    skipping: bool,
    /// Lines that name no code.
    pub malformed: u64,
}

impl PerfMap {
    /// Takes in more of the file; calls `each` with start, size and code of every line that is complete.
    pub fn read(&mut self, mut bytes: &[u8], mut each: impl FnMut(u64, u64, Code)) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.partial.is_empty() {
                self.line(line, &mut each);
            } else {
                self.keep(line);
                let whole = std::mem::take(&mut self.partial);
                self.line(&whole, &mut each);
            }
            self.skipping = false;
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST + NUMBERS - self.partial.len().min(LONGEST + NUMBERS);
        self.skipping |= bytes.len() > room;
        self.partial.extend(&bytes[..bytes.len().min(room)]);
    }

    fn line(&mut self, line: &[u8], each: &mut impl FnMut(u64, u64, Code)) {
        match parse(line) {
            Some((start, size, code)) => each(start, size, code),
            None => self.malformed += u64::from(!line.is_empty()),
        }
    }
}

fn parse(line: &[u8]) -> Option<(u64, u64, Code)> {
    let line = &line[..line.len().min(LONGEST + NUMBERS)];
    let mut parts = line.splitn(3, |b| *b == b' ');
    let (start, size) = (number(parts.next()?)?, number(parts.next()?)?);
    let name = parts.next()?.trim_ascii();
    if name.is_empty() || name.contains(&0) {
        return None;
    }
    let name = &name[..name.len().min(LONGEST)];
    let code = Code {
        name: String::from_utf8_lossy(name).into(),
        lines: None,
    };
    Some((start, size, code))
}

/// A hexadecimal number, with `0x` (Java) or without.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    // (`from_str_radix` would accept a sign.)
    let plain = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| plain)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> (Vec<(u64, u64, String)>, u64) {
        let (mut map, mut got) = (PerfMap::default(), Vec::new());
        for piece in pieces {
            map.read(piece, |start, size, code| {
                got.push((start, size, code.name.to_string()))
            });
        }
        (got, map.malformed)
    }

    #[test]
    fn lines_of_all_runtimes_in_pieces() {
        let want = vec![
            (0x7f12, 0x1a, "JS:~f /a.js:1:2".to_owned()),
            (0x7f13, 0x20, "Lb;::run".to_owned()),
        ];
        let text = b"7f12 1a JS:~f /a.js:1:2\n0x0000000000007f13 0x20 Lb;::run\n";
        assert_eq!(read(&[text]), (want.clone(), 0));
        for cut in 0..text.len() {
            let (one, two) = text.split_at(cut);
            assert_eq!(read(&[one, two]), (want.clone(), 0), "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&bytes), (want, 0));
        // A line whose end has not arrived says nothing: its name may go on.
        assert_eq!(read(&[b"1 2 f"]), (vec![], 0));
    }

    #[test]
    fn lines_that_name_no_code_are_counted() {
        for line in [
            "x",
            "1",
            "1 2",
            "1 2 ",
            "-1 2 f",
            "+1 2 f",
            "1 g f",
            "1 2 a\0b",
            "11111111111111111 2 f",
        ] {
            assert_eq!(read(&[line.as_bytes(), b"\n"]), (vec![], 1), "{line:?}");
        }
        let (got, malformed) = read(&[b"zzz\n10 10 \xff\xfe\n"]);
        assert_eq!((got.len(), malformed), (1, 1));
    }

    #[test]
    fn long_lines_are_cut_and_take_no_room() {
        let mut map = PerfMap::default();
        let mut got = Vec::new();
        map.read(b"10 20 ", |_, _, _| panic!("no end yet"));
        for _ in 0..1000 {
            map.read(&[b'x'; 4096], |_, _, _| panic!("no end yet"));
        }
        assert!(map.partial.capacity() <= 2 * (LONGEST + NUMBERS));
        map.read(b"\n30 8 g\n", |start, _, code| {
            got.push((start, code.name.len()))
        });
        assert_eq!(got, [(0x10, LONGEST), (0x30, 1)]);
    }
}
