//! Heap snapshots against the allocator's own figures (`mallinfo2`) and the kernel's.
//!
//! Needs root, and a compiler.

#[path = "../common/binary.rs"]
mod binary;
#[path = "../common/mod.rs"]
mod common;

mod books;
mod chroots;
mod command;
mod command_signals;
mod fork;
mod glibc;
mod harm;
mod headroom;
mod http;
mod jemalloc;
mod python;
mod seccomp;
mod seen;
mod types;
mod unreachable;
