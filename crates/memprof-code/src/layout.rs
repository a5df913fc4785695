//! Reads the code layout of a file.

use std::borrow::Cow;

use crate::elf::Elf;
use memprof_profile::{CodeLayout, CodeSegment, Module};
use memprof_sys::target_file::ReadAt;

/// The code layout of a module, from the open file or the saved profile; `None` if the module has neither.
pub fn of_module(module: &Module) -> Option<Cow<'_, CodeLayout>> {
    match &module.file {
        Some(file) => read(file).map(Cow::Owned),
        None => module.layout.as_ref().map(Cow::Borrowed),
    }
}

/// Reads the layout from a file; `None` if it is not a readable ELF file.
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
