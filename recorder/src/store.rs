//! The store of a node: connections, chunks, messages and logs, in SQLite.
//!
//! One thread writes [`Entry`]s; readers have connections of their own and take [`MessageQuery`]s and [`LogQuery`]s.

mod entry;
mod query;

pub use entry::{ChunkEntry, ConnectionEntry, ConnectionId, Entry, Level, LogEntry, MessageEntry};
pub use query::{
    ChunkQuery, ConnectionQuery, Direction, LogQuery, LogRow, MessageDetails, MessageQuery,
    MessageRow, Position,
};
