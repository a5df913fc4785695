//! Heap snapshot: what lives in the heap of a running process, what of it is free, and which pages that takes.
//!
//! In reading order: `snapshot` stops the process and copies its private memory (`memory`); `glibc` reads the
//! allocator's own structures in the copy; `reach` finds the chunks that nothing refers to; `ledger` adds up whose each
//! resident byte is, as `report` has it; `text` and `command` show it.

mod chunks;
pub mod command;
mod figures;
mod glibc;
mod ledger;
mod memory;
mod pages;
mod reach;
mod report;
mod sizes;
mod snapshot;
mod text;

pub use figures::Figures;
pub use glibc::{Mallinfo, Refusal};
pub use ledger::measure;
pub use reach::{Head, Unreachable};
pub use report::{Allocator, Heap, Object, OtherRow, Row, SizeClass, What};
pub use snapshot::{Approach, SnapshotOptions, Taken};
