//! Reads files of `/proc` that contain names of processes or threads. A name may be any bytes, and the kernel truncates it to 15
//! bytes, often in the middle of a character.

use std::fs;
use std::io;

/// Reads a file as text, with U+FFFD for invalid UTF-8.
///
/// # Errors
/// The file cannot be read: the process has ended, or memprof may not inspect it.
pub fn read(path: &str) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
