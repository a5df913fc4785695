//! The page in a real browser: what it shows against what the API answers.
//!
//! Needs root, `cc`, and Debian's `chromium` and `chromium-driver`.

#[path = "../common/mod.rs"]
mod common;

mod browser;
mod large;
mod lists;
mod live;
mod looks;
mod shown;
mod which;
