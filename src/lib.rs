//! memprof shows which code owns the physical memory that a running Linux process holds.
//!
//! The library is what the `memprof` command consists of; its interface is the command line and HTTP, not this crate.
//!
//! # Concepts
//!
//! - **A stack** is a list of frames, each an address in a file, interned by the BPF program under a
//!   [`StackId`](memprof_sys::ids::StackId). Names are looked up when a report is made, never at a fault.
//! - **The page ledger** is a BPF map that has, for each virtual page of a followed address space, the stack whose fault brought the
//!   page in. It is only a hint: a page counts if the kernel's page tables say that it is resident.
//! - **A report** joins the page tables with the ledger. Its total therefore equals the kernel's `RssAnon + RssShmem`, and what
//!   has no record is a row of its own, with the reason ([`Unobserved`](memprof_profile::Unobserved)).
//! - **A measure** is a set of columns beside resident bytes (heap, kernel memory, shared pages), counted by stack as well.
//! - **A loss** is an event, a stack or a process that memprof missed. It is counted, and every report shows it
//!   ([`Losses`](memprof_profile::Losses)).
//!
//! # Wings
//!
//! Each wing imports only from the wings above it in this table. The first six are crates; `layers.rs` checks the others.
//!
//! | wing | what it is |
//! |---|---|
//! | [`memprof_sys`] | what memprof asks the kernel, about itself and about other processes |
//! | [`memprof_profile`] | the model that all views read: stacks, kinds, columns, trees, filters, and its saved form |
//! | [`memprof_recording`] | the reports of hours and weeks in one SQLite file |
//! | [`memprof_code`] | code addresses: which file, which unwind rule, which name |
//! | [`memprof_heap`] | heaps of other processes: snapshots, the sampling library, and having a process load it |
//! | [`memprof_server`] | an HTTP server without anything to serve |
//! | [`probe`] | the BPF program's user-space half: loading it, its maps, its events |
//! | [`collect`] | the collector thread: events in, profiles out |
//! | [`export`] | output formats, and pushing them to stores |
//! | [`http`] | the API and the page |
//! | `tui` | `memprof top` |
//! | [`app`] | commands: flags to configuration to a running session; `memprof doctor` |
//!
//! `ARCHITECTURE.md` follows one page fault and one heap sample through them.

#[cfg(test)]
mod layers;
#[cfg(test)]
#[path = "../tests/common/random.rs"]
mod random;
#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip;
#[cfg(test)]
#[path = "../crates/memprof-profile/src/testing.rs"]
mod testing;

pub mod app;
pub mod collect;
pub mod export;
pub mod http;
pub mod probe;
pub(crate) mod tui;
