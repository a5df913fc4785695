//! Values that messages consist of.

use std::marker::PhantomData;
use std::ops::Deref;

use serde::{Serialize, Serializer};

use super::{Cursor, Decode, DecodeError, Reason};

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
        let from = cursor.offset();
        let mut count = 0;
        while cursor.left() > 0 {
            if count == LIMIT {
                cursor.note(cursor.offset(), Reason::TooMany(LIMIT));
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
        let start = cursor.offset();
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
        let start = cursor.offset();
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
