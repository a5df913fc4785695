//! Code addresses: which file, which unwind rule, which name.

#[cfg(test)]
#[path = "../../../tests/common/programs.rs"]
mod programs;
#[cfg(test)]
#[path = "../../../tests/common/random.rs"]
mod random;
#[cfg(test)]
#[path = "../../../tests/common/skip.rs"]
mod skip;
#[cfg(test)]
#[path = "../../memprof-profile/src/testing.rs"]
mod testing;

pub mod allocators;
pub mod debuginfod;
pub mod elf;
pub mod interpreter;
pub mod jit;
pub mod layout;
pub mod modules;
pub mod symbolize;
pub mod unwind;
pub mod usdt;
