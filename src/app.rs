//! Commands: turns flags into a configuration and a running session; implements `doctor`.

pub mod advise;
pub mod capability;
pub mod cli;
pub mod config;
pub mod heap;
pub mod maps;
pub mod session;
