//! `.eh_frame` → tables that a stack can be walked by without frame pointers.
//!
//! A [`Table`] says for every code address of an ELF file how a frame's caller is found: one
//! [`Rule`] per address range, the few distinct rules interned. [`Table::pack`] gives the form that
//! is searched in the kernel; [`walk`] is the walk itself, in user space.

mod build;
mod cfi;
mod columns;
mod expression;
mod linkage;
mod program;
pub mod publish;
mod rows;
pub(crate) mod rule;
mod scan;
mod sections;
mod spans;
mod table;
pub mod walk;

pub use self::build::{Figures, TableError};
pub use self::rule::{Arch, BX_KEPT, BX_SAVED, CfaKind, FpKind, RA_IN_LINK_REGISTER, Rule};
pub use self::table::{Packed, Page, Row, Table};
