//! Root of fuzz/'s library, which is also named memprof: the modules that read untrusted files and memory, and
//! their dependencies. memprof itself uses `lib.rs`.

#![allow(
    dead_code,
    unused_imports,
    reason = "the rest of memprof uses the rest"
)]

mod clock;
pub mod elf;
pub mod event;
#[path = "heap/fuzzed.rs"]
pub mod heap;
pub mod interpreter;
pub mod jit;
pub mod measure;
mod mmap_lock;
pub mod modules;
mod mounts;
mod proc_dir;
mod proc_text;
pub mod profile;
pub mod residency;
pub mod saved;
pub mod symbol;
pub mod symbolize;
pub mod target_file;
pub mod unwind;

/// The registers alone: nothing is stopped.
pub mod freeze {
    mod registers;
    pub use registers::Registers;
    /// A stub: nothing is forked.
    #[derive(Debug, Default)]
    pub struct Guard;
}
/// A stub: nothing is shown.
pub mod export {
    pub fn printable(text: &str) -> std::borrow::Cow<'_, str> {
        text.into()
    }
}
/// A stub: there is no process.
pub mod target {
    mod container;
    pub use container::Container;

    pub fn comm(_: crate::sys::ids::Pid) -> Option<String> {
        None
    }
}
#[path = "priority.rs"]
pub mod priority;
/// A stub that drops no privileges: the thread that crashes must write the crashing input to a file.
pub mod privileges {
    #[derive(Clone, Copy)]
    pub enum Role {
        Look,
        Symbols,
        Tables,
        Files,
    }

    pub fn reduce(_: Role) {}
}
