//! Code addresses: which file, which unwind rule, which name.

pub mod allocators;
pub mod debuginfod;
pub mod elf;
pub mod interpreter;
pub mod jit;
pub(crate) mod layout;
pub mod modules;
pub mod symbolize;
pub mod unwind;
pub mod usdt;
