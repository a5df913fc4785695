//! memprof shows which code owns the physical memory that a running Linux process holds.

#[cfg(test)]
#[path = "../tests/common/random.rs"]
mod random;
#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip;

pub mod app;
pub mod code;
pub mod collect;
pub mod export;
pub mod heap;
pub mod http;
pub mod probe;
pub mod profile;
pub mod sys;
pub(crate) mod tui;
