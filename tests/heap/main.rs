//! Heap snapshots against the allocator's own figures (`mallinfo2`) and the kernel's.
//!
//! Needs root, and a compiler.

#[path = "../common/mod.rs"]
mod common;

mod glibc;
mod harm;
mod python;
mod seen;
mod unreachable;
