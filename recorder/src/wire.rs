//! The interface between the BPF programs and user space: the generated skeleton, and the records of the ring buffer.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys;

#[allow(
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    non_camel_case_types,
    non_snake_case
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/recorder.skel.rs"));
}

pub(crate) use self::skel::types::{counters, record, record_kind as Kind};
pub(crate) use self::skel::{OpenRecorderSkel, RecorderSkel, RecorderSkelBuilder};

use self::skel::types::side;
use crate::side::Side;

/// Size of a record without the bytes that follow it.
pub(crate) const HEAD: usize = size_of::<record>();

/// A record of the ring buffer. The meaning of the numbers depends on the kind, see `recorder.h`.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    pub kind: Kind,
    /// `CLOCK_MONOTONIC`, in ns.
    pub time: u64,
    pub socket: u64,
    pub offset: u64,
    pub in_order: u64,
    pub process: u32,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub sender: Option<Side>,
    pub initiator: Option<Side>,
    pub data: &'a [u8],
}

/// The bytes of a record without the unused rest of the room that was reserved for it.
pub(crate) fn trim(bytes: &[u8]) -> Option<&[u8]> {
    let length = number(bytes, offset_of!(record, length)).map(u32::from_ne_bytes)?;
    bytes.get(..HEAD.checked_add(usize::try_from(length).ok()?)?)
}

/// Decodes a record. `None` if the bytes are not one.
pub(crate) fn decode(bytes: &[u8]) -> Option<Record<'_>> {
    let long = |at| number(bytes, at).map(u64::from_ne_bytes);
    let port = |at| number(bytes, at).map(u16::from_ne_bytes);
    let byte = |at| bytes.get(at).copied();
    let v6 = match byte(offset_of!(record, address_size))? {
        4 => false,
        16 => true,
        _ => return None,
    };
    let address = |at| address(number(bytes, at)?, v6);
    let local = address(offset_of!(record, local_address))?;
    let remote = address(offset_of!(record, remote_address))?;
    Some(Record {
        kind: Kind(u32::from(byte(offset_of!(record, kind))?)),
        time: long(offset_of!(record, time))?,
        socket: long(offset_of!(record, socket))?,
        offset: long(offset_of!(record, offset))?,
        in_order: long(offset_of!(record, in_order))?,
        process: number(bytes, offset_of!(record, process)).map(u32::from_ne_bytes)?,
        local: SocketAddr::new(local, port(offset_of!(record, local_port))?),
        remote: SocketAddr::new(remote, port(offset_of!(record, remote_port))?),
        sender: side_of(byte(offset_of!(record, sender))?),
        initiator: side_of(byte(offset_of!(record, initiator))?),
        data: bytes.get(HEAD..)?,
    })
}

/// An address. An IPv4 address in an IPv6 socket is one of IPv4.
fn address(bytes: [u8; 16], v6: bool) -> Option<IpAddr> {
    let v4 = *bytes.first_chunk::<4>()?;
    Some(match v6 {
        true => Ipv6Addr::from(bytes).to_canonical(),
        false => Ipv4Addr::from(v4).into(),
    })
}

fn side_of(value: u8) -> Option<Side> {
    match side(u32::from(value)) {
        side::SIDE_LOCAL => Some(Side::Local),
        side::SIDE_REMOTE => Some(Side::Remote),
        _ => None,
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The counters of all processors together, from their values for each processor.
pub(crate) fn sum(processors: &[Vec<u8>], field: usize) -> u64 {
    let values = processors.iter().filter_map(|bytes| number(bytes, field));
    values.map(u64::from_ne_bytes).sum()
}

/// Number of times that the kernel skipped a program at a tracepoint, because another run of it was in progress on the same processor.
/// Linux 7.0 and later preempt such programs.
pub(crate) fn skipped(program: BorrowedFd<'_>) -> u64 {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the program is open; the kernel writes at most `size` bytes.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size)
    };
    if failed == 0 {
        info.recursion_misses
    } else {
        0
    }
}
