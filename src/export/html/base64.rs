//! Base64 (RFC 4648) as a writer.

use std::io::{self, Write};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes base64 to `out`. [`Base64::finish`] writes the last digits.
pub(super) struct Base64<W> {
    out: W,
    /// Bytes that are not yet three.
    rest: Vec<u8>,
}

impl<W: Write> Base64<W> {
    pub(super) fn new(out: W) -> Base64<W> {
        let rest = Vec::new();
        Base64 { out, rest }
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        if !self.rest.is_empty() {
            let digits = self.rest.len() + 1;
            self.rest.resize(3, 0);
            let mut last = encoded(&self.rest);
            last[digits..].fill(b'=');
            self.out.write_all(&last)?;
        }
        Ok(self.out)
    }
}

/// Four digits for three bytes.
fn encoded(three: &[u8]) -> [u8; 4] {
    let bits = three
        .iter()
        .fold(0, |bits, byte| bits << 8 | usize::from(*byte));
    [18, 12, 6, 0].map(|shift| DIGITS[bits >> shift & 63])
}

impl<W: Write> Write for Base64<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() / 3 * 3;
        let digits: Vec<u8> = self.rest[..whole]
            .chunks_exact(3)
            .flat_map(encoded)
            .collect();
        self.rest.drain(..whole);
        self.out.write_all(&digits)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The base64 form of a text.
pub(super) fn of(text: &str) -> String {
    let mut writer = Base64::new(Vec::new());
    // A vector takes everything.
    let _ = writer.write_all(text.as_bytes());
    let digits = writer.finish().unwrap_or_default();
    digits.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_rfc() {
        for (text, wanted) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(of(text), wanted);
            let mut slow = Base64::new(Vec::new());
            for byte in text.as_bytes() {
                slow.write_all(&[*byte]).unwrap();
            }
            assert_eq!(slow.finish().unwrap(), wanted.as_bytes());
        }
    }
}
