//! Times of events, when the wall clock is set while the recorder runs.

use std::cell::Cell;

use tezos_recorder::time::{Timestamp, Wall};

const SECOND: u64 = 1_000_000_000;
const YEAR: u64 = 365 * 86_400 * SECOND;

/// Two clocks, of which one can be set.
struct Clocks {
    programs: Cell<u64>,
    ahead: Cell<i64>,
    /// Interruptions after the next readings, in ns.
    interruptions: Cell<[u64; 3]>,
}

impl Clocks {
    fn new() -> Self {
        Self {
            programs: Cell::new(500 * SECOND),
            ahead: Cell::new(50 * YEAR as i64),
            interruptions: Cell::default(),
        }
    }

    fn interrupt(&self) {
        let [next, rest @ ..] = self.interruptions.get();
        self.programs.set(self.programs.get() + next);
        self.interruptions.set([rest[0], rest[1], 0]);
    }

    fn wall(&self) -> u64 {
        self.programs.get().wrapping_add_signed(self.ahead.get())
    }

    fn read(&self) -> Wall {
        let programs = || {
            let now = self.programs.get();
            self.programs.set(now + 100);
            now
        };
        let wall = || {
            let now = self.wall();
            self.interrupt();
            now
        };
        Wall::read(programs, wall)
    }
}

fn assert_near(time: Timestamp, expected: u64) {
    let off = time.0.abs_diff(expected);
    assert!(off < 1000, "{off} ns");
}

#[test]
fn later_events_have_the_time_of_the_clock_as_it_was_set() {
    let clocks = Clocks::new();
    for ahead in [50 * YEAR, 51 * YEAR, 20 * YEAR, 0] {
        clocks.ahead.set(ahead as i64);
        let wall = clocks.read();
        let event = clocks.programs.get();
        assert_near(wall.at(event), event + ahead);
        assert_near(wall.at(event - 3 * SECOND), event + ahead - 3 * SECOND);
    }
}

#[test]
fn an_interruption_between_the_clocks_does_not_shift_times() {
    for interruptions in [[SECOND, 0, 0], [0, SECOND, 2 * SECOND], [SECOND, 3, SECOND]] {
        let clocks = Clocks::new();
        clocks.interruptions.set(interruptions);
        let wall = clocks.read();
        let event = clocks.programs.get();
        assert_near(wall.at(event), clocks.wall());
    }
}

#[test]
fn the_steady_clock_goes_on() {
    let (began, wall) = (Timestamp::steady(), Timestamp::now());
    assert!(
        began.0.abs_diff(wall.0) < 3600 * SECOND,
        "it is a time of today"
    );
    std::thread::sleep(std::time::Duration::from_millis(10));
    let passed = Timestamp::steady().0 - began.0;
    assert!((10_000_000..SECOND * 60).contains(&passed), "{passed}");
}
