//! The call tree as JSON: nested, as the `/v1` contract defines it, and as columns for `/v2`.
//!
//! The two share the layout of `profile::tree` and nothing else. `/v1` is written while the tree is walked, so a tree of
//! any size needs no more memory than its deepest path; `/v2` numbers frames and strings first.

pub mod v1;
pub(crate) mod v2;
