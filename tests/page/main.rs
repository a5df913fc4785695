//! The page in a real browser shows what the API returns.
//!
//! Needs root, `cc`, and Debian's `chromium` and `chromium-driver`.

#[path = "../common/mod.rs"]
mod common;

mod browser;
mod cut_off;
mod estimates;
mod large;
mod lists;
mod live;
mod looks;
mod shown;
mod which;
