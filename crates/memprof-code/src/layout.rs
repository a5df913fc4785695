//! Reads the layout of a file's code.

use std::borrow::Cow;

use crate::elf::Elf;
use memprof_profile::{CodeLayout, CodeSegment, Module};
use memprof_sys::target_file::ReadAt;

/// The layout of a module's code: read from the open file, or from the saved profile. `None` if neither is there.
pub fn of_module(module: &Module) -> Option<Cow<'_, CodeLayout>> {
    match &module.file {
        Some(file) => read(file).map(Cow::Owned),
        None => module.layout.as_ref().map(Cow::Borrowed),
    }
}

/// Reads a file; `None` if it is not a readable ELF file.
fn read(file: &dyn ReadAt) -> Option<CodeLayout> {
    let elf = Elf::read(file).ok()?;
    let segments = elf.code_segments().map(|s| CodeSegment {
        offset: s.offset,
        address: s.addr,
        size: s.size,
    });
    Some(CodeLayout {
        build_id: elf.build_id().unwrap_or_default(),
        segments: segments.collect(),
    })
}
