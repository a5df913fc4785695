//! A bounded cursor over the bytes of one message: every read is checked, and errors have their offset.

use std::marker::PhantomData;
use std::ops::Deref;

use serde::{Serialize, Serializer};

/// Maximum of a length of four bytes, exclusive: Octez uses 30 bits.
const MAX_LENGTH: u32 = 1 << 30;

/// Why bytes do not follow the grammar, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {reason}")]
pub struct DecodeError {
    /// Offset in the message, whose first byte is that of its length, or in the chunk of the handshake.
    pub offset: usize,
    /// The reason.
    pub reason: Reason,
}

/// Why bytes do not follow the grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The bytes end before the value does.
    #[error("{needed} bytes are needed, and {left} are left")]
    Short {
        /// Bytes that the value needs.
        needed: usize,
        /// Bytes that there are.
        left: usize,
    },
    /// A length is not below 2³⁰.
    #[error("a length of {0} bytes")]
    Length(u32),
    /// The first byte of a value with several forms is unknown.
    #[error("{value:#04x} is no {of}")]
    Tag {
        /// The kind of value.
        of: &'static str,
        /// The byte.
        value: u8,
    },
    /// A list has more elements than the protocol permits.
    #[error("more than {0} elements")]
    TooMany(usize),
    /// A value has more bytes than the protocol permits.
    #[error("{bytes} bytes, more than {limit}")]
    TooLong {
        /// Its size.
        bytes: usize,
        /// The permitted size.
        limit: usize,
    },
    /// Bytes are left after the end of the value.
    #[error("{0} bytes are left over")]
    Left(usize),
    /// The length of the message excludes its tag.
    #[error("a message without a tag")]
    NoTag,
    /// The length of the message is not that of its bytes.
    #[error("the message's length is {declared}, and it has {bytes} bytes")]
    OtherLength {
        /// The length that the message declares.
        declared: u64,
        /// The bytes that it has.
        bytes: usize,
    },
    /// The message is longer than the recorder decodes, or than the memory permits.
    #[error("the message has {0} bytes; only its beginning is kept, and it is not decoded")]
    NotKept(u64),
    /// The end of the message was not captured.
    #[error("{seen} bytes of the message were captured{}", of(.size))]
    Unfinished {
        /// Bytes that were captured.
        seen: u64,
        /// Its size with its length, in bytes, if the length is known.
        size: Option<u64>,
    },
    /// The message is longer than the protocol permits.
    #[error("a message of {0} bytes; what follows is skipped until a message begins")]
    TooLongMessage(u64),
}

fn of(size: &Option<u64>) -> String {
    size.map_or(String::new(), |size| format!(" of {size}"))
}

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

/// Elements up to the end, of which more than `LIMIT` are noted. They are read each time, so that a list takes no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a, T, const LIMIT: usize = { usize::MAX }> {
    bytes: &'a [u8],
    count: usize,
    item: PhantomData<T>,
}

impl<'a, T: Decode<'a>, const LIMIT: usize> List<'a, T, LIMIT> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements, in their order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T, LIMIT> {
        let mut cursor = Cursor::new(self.bytes);
        (0..self.count).map_while(move |_| T::decode(&mut cursor).ok())
    }
}

impl<'a, T: Decode<'a>, const LIMIT: usize> Decode<'a> for List<'a, T, LIMIT> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let from = cursor.at;
        let mut count = 0;
        while cursor.left() > 0 {
            if count == LIMIT {
                cursor.note(cursor.at, Reason::TooMany(LIMIT));
            }
            T::decode(cursor)?;
            count += 1;
        }
        Ok(Self {
            bytes: cursor.since(from),
            count,
            item: PhantomData,
        })
    }
}

impl<'a, T: Decode<'a> + Serialize, const LIMIT: usize> Serialize for List<'a, T, LIMIT> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// A value with its length in bytes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Dynamic<T>(pub T);

impl<T> Deref for Dynamic<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Dynamic<T> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        cursor.dynamic(T::decode).map(Self)
    }
}

/// Defines structures that are encoded as their fields, one after the other, and whose JSON is an object of them.
macro_rules! sequences {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
        pub struct $name $(<$life>)? {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl<'a> $crate::p2p::read::Decode<'a> for $name $(<$life>)? {
            fn decode(
                cursor: &mut $crate::p2p::read::Cursor<'a>,
            ) -> Result<Self, $crate::p2p::read::DecodeError> {
                // Fields are evaluated in the order in which they are written.
                Ok(Self {
                    $($field: $crate::p2p::read::Decode::decode(cursor)?,)*
                })
            }
        }
    )*};
}

pub(crate) use sequences;

/// `0x00` is nothing, `0xff` a value.
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = cursor.at;
        match u8::decode(cursor)? {
            0 => Ok(None),
            0xff => T::decode(cursor).map(Some),
            value => Err(DecodeError {
                offset: start,
                reason: Reason::Tag {
                    of: "option",
                    value,
                },
            }),
        }
    }
}

/// `0x00` is false and `0xff` true; other values are noted, and true.
impl<'a> Decode<'a> for bool {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let start = cursor.at;
        let value = u8::decode(cursor)?;
        if !matches!(value, 0 | 0xff) {
            let of = "boolean";
            cursor.note(start, Reason::Tag { of, value });
        }
        Ok(value != 0)
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl<'a> Decode<'a> for $type {
            fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
                cursor.array().map(<$type>::from_be_bytes)
            }
        }
    )*};
}

integers!(u8 i8 u16 i16 u32 i32 i64);

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
