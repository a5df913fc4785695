//! `memprof attach-heap` on architectures other than x86-64, where memprof cannot inject the loader call.

use anyhow::{Result, bail};

use crate::attach::AttachConfig;

/// Unsupported on this architecture.
///
/// # Errors
/// Always.
pub fn run(_: &AttachConfig) -> Result<Vec<u8>> {
    bail!(
        "memprof attaches its sampling library to running processes on x86-64 only; `memprof --heap -- COMMAND` starts a command with it"
    )
}
