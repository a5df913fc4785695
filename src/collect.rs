//! The collector thread: events in, profiles out.

pub mod handle;
pub mod status;

pub use handle::CollectorHandle;
pub use status::{LastScan, ProviderError, Status};
