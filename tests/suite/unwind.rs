//! Unwind tables and walks with them, compared with binutils and with known stacks.

#[cfg(target_arch = "x86_64")]
mod busy;
mod chains;
#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
mod containers;
mod corpus;
mod debugger;
mod full;
#[cfg(target_arch = "x86_64")]
mod go;
#[cfg(target_arch = "x86_64")]
mod images;
#[cfg(target_arch = "x86_64")]
mod live;
mod oracle;
mod packaged_programs;
mod packed_rules;
mod readelf;
mod relocated_code;
mod results;
mod rules;
mod saved;
mod servers;
#[cfg(target_arch = "x86_64")]
mod stopped_by_gdb;
#[cfg(target_arch = "x86_64")]
mod stops;
mod synthetic;
mod unreadable;
mod wander;
