//! Converts `.eh_frame` to tables for unwinding stacks without frame pointers.
//!
//! A [`Table`] describes for every code address of an ELF file how to find a frame's caller: one [`Rule`] per address
//! range, with the few distinct rules interned. [`Table::pack`] returns the form that the BPF program searches;
//! [`walk`] is the stack walk in user space.

mod build;
mod cfi;
mod columns;
mod expression;
mod go;
mod linkage;
mod machine_code;
mod program;
mod rows;
pub mod rule;
mod scan;
mod sections;
mod spans;
mod table;
pub mod walk;

pub(crate) use self::build::FunctionRanges;
pub use self::build::{BuildStatistics, TableError};
pub use self::rule::{
    Arch, BX_KEPT, BX_SAVED, CfaKind, FpKind, OTHER_STACK, RA_IN_LINK_REGISTER, Rule,
};
pub(crate) use self::sections::eh_frame;
pub use self::table::{Packed, Page, RuleRow, Table};
