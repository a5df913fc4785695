//! A bounded cursor over the bytes of one message: every read is checked, and errors have their offset.

mod error;
mod values;

pub use error::{DecodeError, Reason};
pub(crate) use values::sequences;
pub use values::{Dynamic, List};

/// Maximum of a length of four bytes, exclusive: Octez uses 30 bits.
const MAX_LENGTH: u32 = 1 << 30;

/// A value that can be read from bytes.
pub trait Decode<'a>: Sized {
    /// Reads the value at the cursor.
    ///
    /// # Errors
    /// If the bytes do not follow the grammar.
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError>;
}

/// A position in the bytes of a message.
///
/// An error ends decoding. A note does not: the value is complete, but breaks a rule, such as a limit.
#[derive(Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
    note: Option<DecodeError>,
}

impl<'a> Cursor<'a> {
    /// A cursor at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            end: bytes.len(),
            note: None,
        }
    }

    /// An error at the cursor's position.
    pub fn error(&self, reason: Reason) -> DecodeError {
        let offset = self.at;
        DecodeError { offset, reason }
    }

    /// Notes a broken rule at `offset`. The first note is kept.
    pub fn note(&mut self, offset: usize, reason: Reason) {
        self.note.get_or_insert(DecodeError { offset, reason });
    }

    /// The offset in the message.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// The bytes up to the end of the innermost value.
    pub fn left(&self) -> usize {
        self.end - self.at
    }

    /// The bytes between an earlier offset and the cursor.
    pub fn since(&self, offset: usize) -> &'a [u8] {
        self.bytes.get(offset..self.at).unwrap_or_default()
    }

    /// Takes `count` bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let left = self.left();
        if count > left {
            let needed = count;
            return Err(self.error(Reason::Short { needed, left }));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    /// Takes the bytes up to the end.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..self.end];
        self.at = self.end;
        rest
    }

    /// Takes an array.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let taken = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    /// Reads a length of four bytes, which counts bytes that follow.
    fn length(&mut self) -> Result<usize, DecodeError> {
        let at = self.at;
        let length = u32::decode(self)?;
        let error = |reason| DecodeError { offset: at, reason };
        if length >= MAX_LENGTH {
            return Err(error(Reason::Length(length)));
        }
        let (needed, left) = (length as usize, self.left());
        if needed > left {
            return Err(error(Reason::Short { needed, left }));
        }
        Ok(needed)
    }

    /// Reads a value that has its length in bytes before it.
    ///
    /// # Errors
    /// If the length is more than the bytes left, or `read` fails.
    pub fn dynamic<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let length = self.length()?;
        let outer = std::mem::replace(&mut self.end, self.at + length);
        let value = read(self);
        if value.is_ok() {
            self.note_left();
        }
        self.at = self.end;
        self.end = outer;
        value
    }

    fn note_left(&mut self) {
        if self.left() > 0 {
            self.note(self.at, Reason::Left(self.left()));
        }
    }

    /// Ends decoding: bytes that are left are noted. Returns the note.
    pub fn finish(mut self) -> Option<DecodeError> {
        self.note_left();
        self.note
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_not_trusted() {
        let long = [0x3f, 0xff, 0xff, 0xff, 1];
        let error = Cursor::new(&long).dynamic(|c| Ok(c.rest())).unwrap_err();
        let (needed, left) = (0x3fff_ffff, 1);
        let reason = Reason::Short { needed, left };
        assert_eq!(error, DecodeError { offset: 0, reason });
        let error = Cursor::new(&[0x40, 0, 0, 0]).dynamic(|_| Ok(()));
        assert_eq!(error.unwrap_err().reason, Reason::Length(1 << 30));
    }

    #[test]
    fn an_inner_value_does_not_read_beyond_its_length() {
        let bytes = [0, 0, 0, 2, 1, 2, 3, 4];
        let mut cursor = Cursor::new(&bytes);
        let error = cursor.dynamic(u32::decode).unwrap_err();
        let (needed, left) = (4, 2);
        let reason = Reason::Short { needed, left };
        assert_eq!(error, DecodeError { offset: 4, reason });
    }

    #[test]
    fn bytes_left_over_are_noted_once_and_the_value_is_kept() {
        let bytes = [0, 0, 0, 3, 1, 2, 3, 4];
        let mut cursor = Cursor::new(&bytes);
        assert_eq!(cursor.dynamic(u16::decode), Ok(0x0102));
        assert_eq!(u8::decode(&mut cursor), Ok(4));
        let note = cursor.finish().unwrap();
        assert_eq!(note.to_string(), "at byte 6: 1 bytes are left over");
    }

    #[test]
    fn a_list_is_read_up_to_its_end() {
        let bytes = [0, 1, 0, 2, 0, 3];
        let mut cursor = Cursor::new(&bytes);
        let list = List::<'_, u16, 2>::decode(&mut cursor).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(cursor.finish().unwrap().reason, Reason::TooMany(2));
        assert!(List::<'_, u16>::decode(&mut Cursor::new(&bytes[..5])).is_err());
    }
}
