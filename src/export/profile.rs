//! memprof's own format: a complete report as JSON.
//!
//! Bytes, file offsets and counts are numbers. A stack is a list of indices into `frames`, innermost first. Stacks are
//! written one by one. The schema has a number, `version`, which increases when readers of the previous version would
//! misread the new one. [`saved`] has the schema, and reads the format back without loss.

use std::io::{self, Write};

use super::{ExportOptions, Exporter, Supports};
use memprof_profile::{Report, saved};

pub(super) const FORMAT: Exporter = Exporter {
    name: "profile",
    about: "the complete report, in bytes",
    extension: "memprof.json",
    content_type: "application/json",
    supports: Supports {
        instead: "It always contains the complete report.",
        ..Supports::NOTHING
    },
    usual_frames: None,
    has_addresses: true,
    write,
};

fn write(report: &Report, _: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    saved::write(report, memprof_code::layout::of_module, out)
}

#[cfg(test)]
mod tests;
