//! The kernel's own list of the sockets whose connections have not ended.

use std::collections::HashSet;
use std::io::Read;
use std::os::fd::AsFd;

use libbpf_rs::{Iter, Link, MapMut, ProgramMut};

use super::CaptureError;
use crate::captured::Socket;

/// The program that lists them. It runs when it is read from.
#[derive(Debug)]
pub(super) enum OpenSockets {
    Listed(Link),
    /// The kernel does not permit such a program.
    NotPermitted,
}

impl OpenSockets {
    pub fn new(program: &ProgramMut<'_>, sockets: &MapMut<'_>) -> Result<Self, CaptureError> {
        let link = program.attach_iter(sockets.as_fd());
        link.map(Self::Listed).map_err(failed)
    }

    pub fn read(&self) -> Result<HashSet<Socket>, CaptureError> {
        let OpenSockets::Listed(link) = self else {
            let why = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
            return Err(CaptureError::io("cannot list the open sockets", why));
        };
        let mut iter = Iter::new(link).map_err(failed)?;
        let mut numbers = Vec::new();
        let read = iter.read_to_end(&mut numbers);
        read.map_err(|e| CaptureError::io("cannot read the list of open sockets", e))?;
        let (numbers, _) = numbers.as_chunks();
        let sockets = numbers.iter().map(|n| Socket(u64::from_ne_bytes(*n)));
        Ok(sockets.collect())
    }
}

fn failed(e: libbpf_rs::Error) -> CaptureError {
    CaptureError::bpf("cannot list the open sockets", e)
}
