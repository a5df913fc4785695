//! What memprof asks the kernel, about itself and about other processes.

pub mod file_id;
pub mod ids;
pub mod kernel_figures;
pub mod kernel_version;
pub(crate) mod run_name;
pub(crate) mod text;
pub mod usage;
