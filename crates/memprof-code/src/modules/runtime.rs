//! Modules of code generated at run time, and which frames are of such code or of an interpreter.

use std::path::Path;
use std::sync::Arc;

use super::ModuleTable;
use memprof_profile::{Frame, FrameKind, Module, ModuleId};
use memprof_sys::target_file::{ReadAt, TargetFile};

impl ModuleTable {
    /// Whether a frame is code generated at run time.
    pub fn is_jit(&self, frame: Frame) -> bool {
        matches!(frame.kind(), FrameKind::Code(module, _) if Some(module) == self.jit)
    }

    /// Whether a frame is code generated at run time, with or without a name.
    pub fn is_made_at_run_time(&self, frame: Frame) -> bool {
        match frame.kind() {
            FrameKind::Code(id, _) => {
                let module = self.modules.get(usize::from(id.0));
                Some(id) == self.jit
                    || module.is_some_and(|m| m.functions.is_some() && !m.is_interpreted())
            }
            FrameKind::Unmapped(_) => false,
        }
    }

    /// Whether a frame is a function that an interpreter runs.
    pub fn is_interpreted(&self, frame: Frame) -> bool {
        match frame.kind() {
            FrameKind::Code(id, _) => {
                let module = self.modules.get(usize::from(id.0));
                module.is_some_and(|m| m.is_interpreted())
            }
            FrameKind::Unmapped(_) => false,
        }
    }

    /// Whether it is the module of all code generated at run time.
    pub fn is_jit_module(&self, module: ModuleId) -> bool {
        self.jit == Some(module)
    }

    /// The path of the file that a frame is in; `None` if it is in none.
    pub fn path(&self, frame: Frame) -> Option<&Path> {
        match frame.kind() {
            FrameKind::Code(id, _) => Some(&self.modules.get(usize::from(id.0))?.path),
            FrameKind::Unmapped(_) => None,
        }
    }

    /// All code generated at run time is one module, without a file.
    pub fn intern_jit(&mut self) -> Option<ModuleId> {
        if self.jit.is_none() && !self.is_full() {
            let id = ModuleId(u16::try_from(self.modules.len()).ok()?);
            self.modules.push(Arc::new(Module::jit()));
            self.shared = None;
            self.jit = Some(id);
        }
        self.jit
    }
}

/// Whether a file without a path is a program or a library: it starts as ELF files do.
pub(super) fn is_program(file: Option<&TargetFile>) -> bool {
    let mut start = [0; 4];
    let read = file.is_some_and(|file| file.fill(&mut start, 0).is_ok());
    read && start == *b"\x7fELF"
}
