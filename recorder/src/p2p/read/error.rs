//! Why bytes do not follow the grammar.

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
