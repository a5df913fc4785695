//! Access to the kernel, about memprof itself and about other processes: `/proc`, cgroups, ptrace, privileges, clocks, messages.

pub mod allocator;
pub mod breakdown;
pub(crate) mod clock;
pub mod console;
pub mod file_id;
pub mod freeze;
pub(crate) mod http_client;
pub mod ids;
pub mod kernel_figures;
pub mod kernel_version;
pub mod limits;
pub(crate) mod mmap_lock;
pub(crate) mod mounts;
pub(crate) mod patient;
pub(crate) mod priority;
pub(crate) mod privileges;
pub(crate) mod proc_dir;
pub(crate) mod proc_text;
pub mod process;
pub mod residency;
pub(crate) mod run_name;
pub mod target_file;
pub(crate) mod text;
pub mod usage;
