//! The page in a real browser shows what the API returns. `mock.py` is the recorder.
//!
//! Needs `python3`, and Debian's `chromium` and `chromium-driver`.

#[allow(dead_code)]
#[path = "../../../tests/common/browser.rs"]
mod browser;
#[path = "../../../tests/common/skip.rs"]
mod skip;

mod details;
mod filters;
mod hostile;
mod live;
mod looks;
mod run;
