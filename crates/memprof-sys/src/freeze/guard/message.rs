//! Messages between memprof and its guard: JSON with a length prefix.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::freeze::registers::Registers;
use crate::freeze::{FreezeError, FreezeStats};

/// A request to the guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::freeze) enum Asked {
    /// Stop all threads of these processes, for at most `max_us` microseconds.
    Stop {
        pids: Vec<u32>,
        max_us: u64,
        /// Also read the threads' registers.
        registers: bool,
    },
    /// Stop these processes as well, within the same time limit.
    More { pids: Vec<u32> },
    /// Release the stopped processes.
    Release,
    /// Make a child of a process. This and the removal of the child may stop the process for at most `max_us` microseconds. If
    /// `hold` is true, hold the process until [`Asked::Release`].
    Fork { pid: u32, max_us: u64, hold: bool },
    /// Remove the child.
    End,
}

/// A message from the guard.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::freeze) enum Said {
    /// All processes are stopped. `until` is the latest time of their release, in ns of `CLOCK_MONOTONIC`.
    Stopped { until: u64 },
    /// The time is up. Unsolicited, and sent before the processes run.
    TimeUp,
    /// The processes run.
    Released {
        stats: FreezeStats,
        registers: Vec<Registers>,
    },
    /// The processes could not be stopped, and run.
    NotStopped(FreezeError),
    /// The child exists. The process runs again, or is held.
    Forked {
        child: i32,
        /// Time for which the process was stopped, in seconds.
        stop: f64,
        /// Maximum time for which the process is held, in seconds.
        left: f64,
        /// A time at which the process was stopped, in ns of `CLOCK_MONOTONIC`.
        at: u64,
        threads: Vec<Registers>,
        /// The process's anonymous memory at that time, resident and swapped out, in bytes, if the kernel's counters are exact.
        anonymous: Option<[u64; 2]>,
    },
    /// The held process runs. `stop` is the time for which it was stopped, in seconds. `in_time` is true if it was stopped until
    /// memprof requested its release.
    LetGo { stop: f64, in_time: bool },
    /// There is no child, and the process runs. `stop` is the time for which it was stopped, in seconds.
    Failed { reason: String, stop: f64 },
    /// The child has ended.
    Ended {
        /// Time for which a thread was stopped to reap the child, in seconds.
        stop: f64,
        /// Why the child is still a zombie, if it is.
        remains: Option<String>,
    },
    /// The process of the guard that held other processes was killed, so the kernel released them. Unsolicited.
    Lost(String),
}

impl Said {
    /// The message for a reply of an unexpected kind.
    pub(in crate::freeze) fn unexpected(self) -> String {
        match self {
            Said::Lost(why) => why,
            _ => "memprof's guard gave another answer".to_owned(),
        }
    }
}

/// Maximum size of a message, in bytes: enough for the registers of a million threads.
const MAX_SIZE: u32 = 1 << 30;

/// Sends a message.
///
/// # Errors
/// The receiver is gone.
pub(in crate::freeze) fn send(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, what)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    to.write_all(&bytes)?;
    to.flush()
}

/// Receives one message, and reads nothing beyond it.
///
/// # Errors
/// The sender is gone, or the message is malformed.
pub(in crate::freeze) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_SIZE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len as usize];
    from.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_as_it_was_sent() {
        let mut bytes = Vec::new();
        let asked = [
            Asked::Stop {
                pids: vec![1, 2],
                max_us: 5,
                registers: true,
            },
            Asked::End,
        ];
        for asked in &asked {
            send(&mut bytes, asked).unwrap();
        }
        let mut from = &bytes[..];
        for asked in asked {
            assert_eq!(receive::<Asked>(&mut from).unwrap(), asked);
        }
        let end = receive::<Asked>(&mut from).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        assert!(receive::<Asked>(&mut &[255; 9][..]).is_err());
    }
}
