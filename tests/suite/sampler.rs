//! The library that targets preload: its file, what it does to programs, and whether its samples estimate truly.
//!
//! Needs a compiler. The estimates are those of the library itself, which is compiled once more such that a program
//! can listen to its own samples.

mod behaviour;
pub mod ddheap;
mod estimates;
mod file;
mod python;
mod running_programs;
mod support;
