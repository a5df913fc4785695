//! Commands: flags to configuration to a running session, and `doctor`.

pub mod capability;
pub mod cli;
pub mod config;
pub mod heap;
pub mod maps;
pub mod session;
