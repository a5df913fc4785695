//! The call tree as JSON: nested, as the `/v1` contract defines it, and as columns for `/v2`.
//!
//! Both write the paths of `profile::tree` and share nothing else. `/v1` is written while the tree is walked, so that a
//! tree of any size can be sent; `/v2` numbers frames and strings first.

pub mod v1;
pub(crate) mod v2;
