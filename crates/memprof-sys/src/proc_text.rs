//! Files of `/proc` with the names of processes and threads. A name may be any bytes, and the kernel cuts it after 15, which is
//! often in the middle of a character.

use std::fs;
use std::io;

/// Reads such a file, with U+FFFD for what is not UTF-8.
///
/// # Errors
/// The file cannot be read: the process has ended, or may not be inspected.
pub fn read(path: &str) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
