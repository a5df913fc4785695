//! Unwind tables and the walk by them, held against binutils and against stacks that are known.

mod chains;
#[path = "../common/mod.rs"]
mod common;
mod corpus;
mod debugger;
mod found;
mod full;
#[cfg(target_arch = "x86_64")]
mod live;
mod made;
mod oracle;
mod packed;
mod readelf;
mod real;
mod rules;
mod saved;
mod servers;
mod wander;
