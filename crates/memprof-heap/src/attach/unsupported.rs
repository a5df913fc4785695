//! On processors where memprof cannot have other processes load libraries.

use anyhow::{Result, bail};

use crate::attach::AttachConfig;

/// There is none.
///
/// # Errors
/// Always.
pub fn run(_: &AttachConfig) -> Result<Vec<u8>> {
    bail!(
        "memprof attaches its sampling library to running processes on x86-64 only; `memprof --heap -- COMMAND` starts a command with it"
    )
}
