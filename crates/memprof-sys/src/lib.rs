//! Access to the kernel, about memprof itself and about other processes: `/proc`, cgroups, ptrace, privileges, clocks, messages.

#[cfg(test)]
#[path = "../../../tests/common/programs.rs"]
mod programs;
#[cfg(test)]
#[path = "../../../tests/common/random.rs"]
mod random;
#[cfg(test)]
#[path = "../../../tests/common/skip.rs"]
mod skip;

pub mod allocator;
pub mod breakdown;
pub mod clock;
pub mod close_later;
pub mod file_id;
pub mod freeze;
pub mod http_client;
pub mod ids;
pub mod interruptible_writer;
pub mod kernel_figures;
pub mod kernel_version;
pub mod limits;
pub mod messages;
pub mod mmap_lock;
pub mod mounts;
pub mod priority;
pub mod privileges;
pub mod proc_dir;
pub mod process;
pub mod procfs;
pub mod residency;
pub mod run_name;
pub mod target_file;
pub mod text;
pub mod usage;
