//! memprof shows which code owns the physical memory that a running Linux process holds.

pub(crate) mod aggregate;
#[cfg(test)]
#[path = "../tests/common/random.rs"]
mod random;
#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip;

pub mod allocations;
pub mod allocator;
pub mod api;
#[cfg_attr(not(target_arch = "x86_64"), path = "attach_other.rs")]
pub mod attach;
pub mod breakdown;
pub mod capability;
pub mod cli;
pub(crate) mod clock;
pub(crate) mod code;
pub mod collect;
pub mod config;
pub mod console;
pub mod debuginfod;
pub mod elf;
pub mod event;
pub mod exact;
pub mod export;
pub(crate) mod file_paths;
pub mod freeze;
pub mod gate;
pub mod heap;
pub mod http;
pub(crate) mod http_client;
pub mod interpreter;
pub mod jit;
pub mod limits;
pub mod measure;
pub(crate) mod mmap_lock;
pub mod modules;
pub(crate) mod mounts;
pub(crate) mod patient;
pub(crate) mod priority;
pub(crate) mod privileges;
pub mod probe;
pub(crate) mod proc_dir;
pub(crate) mod proc_text;
pub mod profile;
pub mod push;
pub mod residency;
pub mod sampler;
pub mod samples;
pub mod saved;
pub(crate) mod screen;
pub(crate) mod series;
pub mod server;
pub mod session;
pub(crate) mod source;
pub(crate) mod space;
pub(crate) mod stack;
pub mod symbol;
pub mod symbolize;
pub mod sys;
pub mod target;
pub mod target_file;
pub mod tree;
pub mod unwind;
pub mod usdt;
pub mod web;
pub(crate) mod wire;
