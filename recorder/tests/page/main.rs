//! The page in a real browser shows what the API returns. `mock.py` stands for the recorder, whose own API `real` tests.
//!
//! Needs `python3`, and Debian's `chromium` and `chromium-driver`.

#[allow(dead_code)]
#[path = "../../../tests/common/browser.rs"]
mod browser;
#[allow(dead_code)]
#[path = "../suite/store/entries.rs"]
mod entries;
#[path = "../../../tests/common/skip.rs"]
mod skip;

mod details;
mod filters;
mod hostile;
mod live;
mod looks;
mod real;
mod run;
