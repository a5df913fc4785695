//! Which programs can preload the library.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};
use object::elf::{EM_AARCH64, EM_X86_64};

use memprof_code::elf::Elf;
use memprof_code::modules::open_regular;
use memprof_sys::target_file::{About, ReadAt, TargetFile};

/// Why a program cannot preload the library.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// Its file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Neither a program nor a script.
    #[error("{} is not a program for this machine", .0.display())]
    NotNative(PathBuf),
    /// It has no dynamic loader, which is what preloads.
    #[error("{} is linked statically, so nothing can be preloaded", .0.display())]
    Static(PathBuf),
    /// The loader preloads nothing for programs that gain privileges.
    #[error("{} runs with the privileges of its owner or group, so nothing is preloaded", .0.display())]
    Privileged(PathBuf),
}

/// Linux follows as many scripts that are interpreted by scripts.
const MAX_SCRIPTS: usize = 5;
/// The kernel reads as much of a script's first line.
const FIRST_LINE: usize = 256;

/// Whether a program can preload the library; of a script, its interpreter.
///
/// # Errors
///
/// Why it cannot. What a program executes later may be otherwise.
pub fn check(program: &Path) -> Result<(), Unfit> {
    let mut path = program.to_owned();
    for _ in 0..MAX_SCRIPTS {
        let unreadable = |source| Unfit::Unreadable {
            path: path.clone(),
            source,
        };
        let file = open_regular(&path).map_err(unreadable)?;
        match interpreter(&file).map_err(unreadable)? {
            Some(next) => path = next,
            None => return check_file(&path, &file),
        }
    }
    Err(Unfit::NotNative(program.to_owned()))
}

/// The interpreter in a script's first line.
fn interpreter(file: &TargetFile) -> io::Result<Option<PathBuf>> {
    let mut line = [0; FIRST_LINE];
    let got = file.read_some(&mut line, 0)?;
    let line = &line[..got];
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let is_blank = |byte: &u8| b" \t".contains(byte);
    let from = rest.iter().position(|b| !is_blank(b)).unwrap_or(rest.len());
    let rest = &rest[from..];
    let to = rest
        .iter()
        .position(|b| is_blank(b) || *b == b'\n' || *b == 0);
    Ok(Some(
        OsStr::from_bytes(&rest[..to.unwrap_or(rest.len())]).into(),
    ))
}

fn check_file(path: &Path, file: &TargetFile) -> Result<(), Unfit> {
    let native = if cfg!(target_arch = "x86_64") {
        EM_X86_64
    } else {
        EM_AARCH64
    };
    let elf = match Elf::read(file) {
        Ok(elf) if elf.machine() == native => elf,
        _ => return Err(Unfit::NotNative(path.into())),
    };
    if elf.interpreter().is_none() {
        return Err(Unfit::Static(path.into()));
    }
    if gains_privileges(path, file.about()) {
        return Err(Unfit::Privileged(path.into()));
    }
    Ok(())
}

/// Whether the kernel starts the program in secure mode (`AT_SECURE`) for this process.
fn gains_privileges(path: &Path, about: &About) -> bool {
    let mode = about.mode();
    let user = mode & libc::S_ISUID != 0 && about.owner() != geteuid().as_raw();
    // Without the group's execute bit, it means something else.
    let group = mode & libc::S_ISGID != 0
        && mode & libc::S_IXGRP != 0
        && about.group() != getegid().as_raw();
    user || group || (!geteuid().is_root() && has_capabilities(path))
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: both names end in a zero byte, and without a buffer only the attribute's size is returned.
    unsafe {
        libc::getxattr(
            path.as_ptr(),
            c"security.capability".as_ptr(),
            std::ptr::null_mut(),
            0,
        ) > 0
    }
}
