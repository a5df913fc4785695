//! Lines out of bytes that come in pieces.

/// Collects bytes into lines of a limited size.
pub struct Lines {
    limit: usize,
    line: Vec<u8>,
    /// Size of the line so far, also of what is cut off.
    size: u64,
}

impl Lines {
    /// Lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            size: 0,
        }
    }

    /// Takes bytes and passes on the lines that end in them, without their end, and whether they were cut off.
    pub fn take(&mut self, bytes: &[u8], line: &mut dyn FnMut(&[u8], bool)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = self.limit - self.line.len();
            self.line.extend(&text[..text.len().min(room)]);
            self.size += text.len() as u64;
            if text.len() < piece.len() {
                self.end(line);
            }
        }
    }

    /// Passes on the line that has begun, if one has.
    pub fn flush(&mut self, line: &mut dyn FnMut(&[u8], bool)) {
        if self.size > 0 {
            self.end(line);
        }
    }

    /// Number of bytes of the line that has begun.
    pub fn begun(&self) -> u64 {
        self.size
    }

    fn end(&mut self, line: &mut dyn FnMut(&[u8], bool)) {
        line(&self.line, self.size > self.line.len() as u64);
        self.line.clear();
        self.size = 0;
    }
}
