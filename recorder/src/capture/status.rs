//! What a capture says about itself: its state, its losses, its errors.

use std::io;
use std::path::PathBuf;

use super::Source;
use crate::wire::{self, counters};

/// Sums since the capture began. Bytes are those of connections, without headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureLosses {
    /// Records for which the ring buffer had no room.
    pub records: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes that the kernel did not let the programs copy.
    pub unreadable_bytes: u64,
    /// Bytes that were sent or received again, and were not copied: no loss.
    pub repeated_bytes: u64,
    /// Bytes of sockets that were to be ignored: no loss.
    pub ignored_bytes: u64,
    /// IPv6 packets that are not recorded, because their extension headers are not understood: fragments, or more than four headers.
    pub extended_packets: u64,
    /// System calls that the programs had no room to note.
    pub missed_calls: u64,
    /// Events that the kernel did not run the programs for: system calls, whose bytes are then gaps, and beginnings and ends of
    /// connections. Since Linux 7.0, whose tracepoints can be preempted.
    pub skipped_events: u64,
    /// Bytes that came with the end of a handshake that did not succeed.
    pub unclaimed_bytes: u64,
    /// Records that could not be decoded; always 0 unless the recorder has a defect.
    pub malformed: u64,
}

impl CaptureLosses {
    /// The sums of the programs, from the counters of each processor.
    pub(super) fn from_counters(processors: &[Vec<u8>]) -> Self {
        macro_rules! sum {
            ($field:ident) => {
                wire::sum(processors, std::mem::offset_of!(counters, $field))
            };
        }
        Self {
            records: sum!(lost_records),
            bytes: sum!(lost_bytes),
            unreadable_bytes: sum!(unreadable_bytes),
            repeated_bytes: sum!(repeated_bytes),
            ignored_bytes: sum!(ignored_bytes),
            extended_packets: sum!(extended_packets),
            missed_calls: sum!(missed_calls),
            ..Self::default()
        }
    }
}

/// The state of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFacts {
    /// The source in use; never [`Source::Auto`].
    pub source: Source,
    /// Why it is not the main source, if it was chosen automatically.
    pub reason: Option<String>,
    /// Directories of the control groups whose packets are captured.
    pub cgroups: Vec<PathBuf>,
    /// Processes whose system calls are captured.
    pub processes: Vec<u32>,
    /// Targets that are not captured now, each with the reason.
    pub missing: Vec<String>,
    /// Size of the ring buffer in bytes.
    pub ring: usize,
}

/// Why bytes cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The kernel's BPF refused something.
    #[error("{attempt}: {reason:#}{}", remedy(reason))]
    Bpf {
        /// What was attempted.
        attempt: String,
        /// The reason.
        reason: libbpf_rs::Error,
    },
    /// The system refused something else.
    #[error("{attempt}: {reason}")]
    System {
        /// What was attempted.
        attempt: String,
        /// The reason.
        reason: io::Error,
    },
    /// The programs cannot be attached to a target.
    #[error("{0}")]
    Refused(String),
}

impl CaptureError {
    pub(super) fn bpf(attempt: &str, reason: libbpf_rs::Error) -> Self {
        let attempt = attempt.into();
        Self::Bpf { attempt, reason }
    }

    pub(super) fn io(attempt: &str, reason: io::Error) -> Self {
        let attempt = attempt.into();
        Self::System { attempt, reason }
    }
}

fn remedy(reason: &libbpf_rs::Error) -> &'static str {
    match reason.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            "; run the recorder as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
        }
        _ => "",
    }
}
