//! How long and how often tests do what they do, for all of them by the same variables: `MEMPROF_TEST_SECS` and
//! `MEMPROF_TEST_ROUNDS` (for longer runs), `MEMPROF_TEST_SEED` (to repeat a run), and `MEMPROF_TEST_FULL=1` (the full form of
//! tests that have a short one). They apply to every test that runs, so name the test, too. This file does not depend on its
//! sibling modules.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::env;
use std::time::{Duration, SystemTime};

/// The duration of a test that can run for any time.
pub fn duration(usual_secs: u64) -> Duration {
    Duration::from_secs(number("MEMPROF_TEST_SECS").unwrap_or(usual_secs))
}

/// The number of rounds of a test that can have any number.
pub fn rounds<T: TryFrom<u64>>(usual: T) -> T {
    let set = number("MEMPROF_TEST_ROUNDS").map(T::try_from);
    set.map_or(usual, |n| n.ok().expect("MEMPROF_TEST_ROUNDS is too large"))
}

/// The seed of random numbers, never 0. Printed, because the output of a failed test is shown.
pub fn seed() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = fixed_seed(now).max(1);
    println!("MEMPROF_TEST_SEED={seed}");
    seed
}

/// The seed of a test that usually does the same in each run.
pub fn fixed_seed(usual: u64) -> u64 {
    number("MEMPROF_TEST_SEED").unwrap_or(usual)
}

/// Whether tests run in their full form.
pub fn is_full() -> bool {
    env::var_os("MEMPROF_TEST_FULL").is_some_and(|v| v == "1")
}

/// The value of a variable that is a number; `None` if it is not set.
pub fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}
