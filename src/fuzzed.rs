//! The root of fuzz/'s library, which goes by memprof's name: what reads files of others, and what
//! that needs. memprof itself has `lib.rs`.

#![allow(dead_code, reason = "the rest of memprof uses the rest")]

pub mod elf;
pub mod event;
pub mod modules;
pub mod profile;
pub mod residency;
pub mod symbol;
pub mod symbolize;
pub mod unwind;

/// Nothing is given up: the thread that a crash is found in writes down what led to it.
#[path = "priority.rs"]
pub mod priority;
pub mod privileges {
    #[derive(Clone, Copy)]
    pub enum Role {
        Symbols,
        Tables,
    }

    pub fn reduce(_: Role) {}
}
