//! Times of captured events.
//!
//! The clock of the programs is never set. The machine's wall clock can be, at any time and in either direction: events before that keep
//! their times, and later ones have those of the clock as it was set. So times of records can go back; their order is that of their ids.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use memprof_sys::clock;

/// A time, in nanoseconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The present time.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self::default().after(since.unwrap_or_default())
    }

    /// The present time of a clock that is never set, but for that like the wall clock when the program began. By it waiting is judged.
    pub fn steady() -> Self {
        static BEGAN: OnceLock<(Timestamp, Instant)> = OnceLock::new();
        let (began, instant) = BEGAN.get_or_init(|| (Self::now(), Instant::now()));
        began.after(instant.elapsed())
    }

    /// The time that much later; the last time that can be represented, if it would be later than that.
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// The wall clock as seen from the clock of the programs.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    /// Wall clock minus the clock of the programs, in ns; wraps around.
    ahead: u64,
}

impl Wall {
    const READINGS: usize = 3;

    /// Reads both clocks of the machine.
    pub fn now() -> Self {
        Self::read(clock::now_ns, || Timestamp::now().0)
    }

    /// Reads two clocks, in ns: that of the programs, and the wall clock. The thread may be interrupted between them, so that of several
    /// readings the fastest counts.
    pub fn read(mut programs: impl FnMut() -> u64, mut wall: impl FnMut() -> u64) -> Self {
        let mut reading = || {
            let (before, wall) = (programs(), wall());
            let took = programs().saturating_sub(before);
            (took, wall.wrapping_sub(before + took / 2))
        };
        let (mut fastest, mut ahead) = reading();
        for (took, read) in (1..Self::READINGS).map(|_| reading()) {
            if took < fastest {
                (fastest, ahead) = (took, read);
            }
        }
        Self { ahead }
    }

    /// The time on the wall clock at a time of the programs' clock, in ns.
    pub fn at(self, programs: u64) -> Timestamp {
        Timestamp(programs.wrapping_add(self.ahead))
    }
}
