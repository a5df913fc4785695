//! memprof shows which code owns the physical memory that a running Linux process holds.

pub mod aggregate;
pub mod api;
pub mod capability;
pub mod cli;
pub mod elf;
pub mod event;
pub mod export;
pub mod file_paths;
pub mod freeze;
pub mod modules;
pub mod probe;
pub mod profile;
pub mod residency;
pub mod series;
pub mod server;
pub mod session;
pub mod source;
pub mod space;
pub mod stack;
pub mod symbol;
pub mod symbolize;
pub mod target;
pub mod tree;
pub mod unwind;
pub mod wire;
