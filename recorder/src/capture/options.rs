//! Whose connections are captured, and how.

use std::fmt;
use std::path::PathBuf;

/// Whose connections to capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Those of a control group of version 2 and of those below it, by its directory. A relative path is below the mount point.
    Cgroup(PathBuf),
    /// Those of a systemd unit, such as `octez-node.service`.
    Unit(String),
    /// Those of the control group that a process is in.
    Process(u32),
    /// Those of the control group of the process that listens at a TCP port, in any network namespace.
    Port(u16),
}

/// Writes what an error calls the target.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(path) => write!(f, "control group {}", path.display()),
            Self::Unit(unit) => write!(f, "unit {unit}"),
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Port(port) => write!(f, "process that listens at port {port}"),
        }
    }
}

/// Where the bytes come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Packets if the host allows it, else system calls.
    #[default]
    Auto,
    /// Packets of control groups.
    Sockets,
    /// System calls of processes.
    Calls,
}

/// How to capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// Whose connections.
    pub targets: Vec<Target>,
    /// Where the bytes come from.
    pub source: Source,
    /// Size of the ring buffer in bytes; rounded up to a power of two, at least 128 KiB and at most 1 GiB.
    pub ring: usize,
}

impl CaptureOptions {
    /// Size of the ring buffer in bytes, unless chosen.
    pub const RING: usize = 32 << 20;

    pub(super) fn ring_size(&self) -> u32 {
        let size = self.ring.clamp(128 << 10, 1 << 30);
        size.next_power_of_two() as u32
    }
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            source: Source::Auto,
            ring: Self::RING,
        }
    }
}
