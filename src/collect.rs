//! The collector thread: events in, profiles out.

pub(crate) mod aggregate;
pub(crate) mod collection;
pub mod collector;
pub(crate) mod file_paths;
pub(crate) mod functions;
pub mod handle;
pub(crate) mod library_cache;
pub(crate) mod program;
pub(crate) mod publish;
pub(crate) mod reconcile;
pub(crate) mod resident;
pub mod samples;
pub(crate) mod space;
pub(crate) mod stack;
pub mod status;
pub(crate) mod sweep;
pub mod unwinding;

pub use handle::CollectorHandle;
pub use status::{LastScan, ProviderError, Status};
