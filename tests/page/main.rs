//! The page in a real browser shows what the API returns.
//!
//! Needs root, `cc`, and Debian's `chromium` and `chromium-driver`.

#[path = "../common/mod.rs"]
mod common;

mod accessible;
mod allocations;
mod answers;
mod commands;
mod cut_off;
mod differences;
mod ended;
mod estimates;
mod exact_window;
mod filter;
mod first_screen;
mod function_selection;
mod heap;
mod heap_report;
mod killed;
mod kinds;
mod large;
mod layout;
mod lists;
mod live;
mod overview;
mod process_and_time;
mod recorded;
mod saved;
mod source;
mod timeline;
mod token;
mod visual;
mod waiting;
