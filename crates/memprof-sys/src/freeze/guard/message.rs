//! What memprof and its guard say to each other: messages of JSON, each behind its length.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::freeze::registers::Registers;
use crate::freeze::{FreezeError, FreezeStats};

/// What memprof asks of the guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::freeze) enum Asked {
    /// Stop all threads of these processes, for so many microseconds at most.
    Stop {
        pids: Vec<u32>,
        max_us: u64,
        /// Read their registers.
        registers: bool,
    },
    /// Stop these processes, too, within the same time.
    More { pids: Vec<u32> },
    /// Let them run.
    Release,
    /// Make a child of a process, for which that is stopped for so many microseconds at most, the removal included. It is to be
    /// held then until [`Asked::Release`].
    Fork { pid: u32, max_us: u64, hold: bool },
    /// Remove the child.
    End,
}

/// What the guard answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::freeze) enum Said {
    /// All are stopped until this time at the latest, in ns of `CLOCK_MONOTONIC`.
    Stopped { until: u64 },
    /// Without being asked, before they run: the time is up.
    TimeUp,
    /// They run.
    Released {
        stats: FreezeStats,
        registers: Vec<Registers>,
    },
    /// They could not be stopped, and run.
    NotStopped(FreezeError),
    /// The child exists, and the process runs again, or is held.
    Forked {
        child: i32,
        /// Time for which the process was stopped, in seconds.
        stop: f64,
        /// Time for which it is held at most, in seconds.
        left: f64,
        /// A moment at which it was stopped, in ns of `CLOCK_MONOTONIC`.
        at: u64,
        threads: Vec<Registers>,
        /// Its anonymous memory, resident and swapped out, in bytes, if the kernel's counters are exact.
        anonymous: Option<[u64; 2]>,
    },
    /// The process that was held runs. It was stopped for so many seconds, and until memprof asked for it if that was in time.
    LetGo { stop: f64, in_time: bool },
    /// There is no child, and the process runs. It was stopped for so many seconds.
    Failed { reason: String, stop: f64 },
    /// The child has ended.
    Ended {
        /// Time for which a thread was stopped for that, in seconds.
        stop: f64,
        /// Why it is still in the list of processes.
        remains: Option<String>,
    },
    /// The process of the guard that held others was killed, so that the kernel let go of them. Without being asked.
    Lost(String),
}

impl Said {
    /// Why this is not the answer that was expected.
    pub(in crate::freeze) fn unexpected(self) -> String {
        match self {
            Said::Lost(why) => why,
            _ => "memprof's guard gave another answer".to_owned(),
        }
    }
}

/// Maximum size of a message: the registers of a million threads.
const MOST: u32 = 1 << 30;

/// Sends a message.
///
/// # Errors
/// Nobody receives it.
pub(in crate::freeze) fn send(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, what)?;
    let len = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    to.write_all(&bytes)?;
    to.flush()
}

/// Receives a message, and reads nothing beyond it.
///
/// # Errors
/// The other side is gone, or does not speak as expected.
pub(in crate::freeze) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MOST {
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
