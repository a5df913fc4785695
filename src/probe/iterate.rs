//! Running the probe's iterators.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_rs::{Iter, Link, libbpf_sys};

use memprof_sys::ids::Pid;

/// Runs an iterator over all its elements.
pub(super) fn run(link: &Link) -> Result<()> {
    let mut iter = Iter::new(link)?;
    iter.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Runs an iterator over tasks or mappings for one process (6.1, f0d74c4da1f0), to its end or until the program returns 1.
pub(super) fn run_for(program: BorrowedFd<'_>, pid: Pid) -> Result<()> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    info.task.pid = pid.0;
    let mut opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: &raw mut info,
        iter_info_len: size_of::<libbpf_sys::bpf_iter_link_info>() as _,
        ..Default::default()
    };
    // SAFETY: `opts` and what it points to outlive the call.
    let link = owned(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_ITER,
            &raw mut opts,
        )
    });
    let link = link.context("cannot attach the BPF iterator to a process")?;
    // SAFETY: the descriptor is open.
    let iter = owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) });
    let mut iter = std::fs::File::from(iter.context("cannot create a BPF iterator")?);
    match iter.read_to_end(&mut Vec::new()) {
        // The kernel would have the program try the same element again.
        Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e.into()),
        _ => Ok(()),
    }
}

/// A descriptor returned by the kernel, or its error.
fn owned(fd: i32) -> std::io::Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
