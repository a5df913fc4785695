//! Resident and cached pages, by the stack that first touched them.

use super::Measure;

/// The measure of every report: bytes that add up to the kernel's figures.
pub const RESIDENCY: Measure = Measure {
    name: "residency",
    title: "resident memory",
    option: None,
    always_stated: true,
    columns: &[],
};
