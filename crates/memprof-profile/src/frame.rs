//! Stacks: frames and the files that contain their code.

pub(crate) mod source_origin;

use std::path::PathBuf;

use super::{CodeLayout, Functions, Origin};
use crate::Outcome;
use memprof_sys::target_file::{FileTree, TargetFile};

/// Index of a [`Module`] in [`Profile::modules`](super::Profile::modules).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u16);

/// An executable file mapped by the target. It stays open so that symbols can be read after the process has ended or the
/// file was deleted.
#[derive(Debug)]
pub struct Module {
    /// Path as the kernel shows it in `/proc/PID/maps`, without a ` (deleted)` suffix.
    pub path: PathBuf,
    /// The file tree of the path; `None` for memprof's own.
    pub tree: Option<FileTree>,
    /// Base name for display, such as `libc.so.6`. For an executable with several names, the name under which it runs.
    pub name: String,
    /// Device and inode number, which distinguish files with the same name.
    pub dev_ino: (u64, u64),
    /// The open file; `None` if it could not be opened.
    pub file: Option<TargetFile>,
    /// Build id and code segments of a file in a saved profile, which is not open.
    pub layout: Option<CodeLayout>,
    /// The functions of a module without an ELF file. Frames in such a module encode a function and a line instead of an
    /// offset.
    pub functions: Option<Functions>,
    /// Whether the file is the executable of the profiled program (`/proc/PID/exe`).
    pub own_executable: bool,
}

impl Module {
    /// The module of all JIT code. It has no file, and offsets in it are addresses.
    pub fn jit() -> Module {
        Module {
            path: JIT.into(),
            tree: None,
            name: JIT.to_owned(),
            dev_ino: (0, 0),
            file: None,
            layout: None,
            functions: None,
            own_executable: false,
        }
    }

    /// Whether the file cannot be read at present because its file system does not respond.
    pub fn rests(&self) -> bool {
        self.file.as_ref().is_some_and(TargetFile::is_backing_off)
    }

    /// Whether it is a source file of an interpreted program, and not of the interpreter's standard library or packages.
    pub fn is_own_source(&self) -> bool {
        self.functions.is_some() && source_origin::is_own(&self.path)
    }

    /// Whether it is the executable of an interpreter, which runs programs that others wrote.
    pub fn is_runtime(&self) -> bool {
        self.own_executable && source_origin::is_runtime(&self.path)
    }

    /// Whether an interpreter runs the functions of this module.
    pub fn is_interpreted(&self) -> bool {
        let functions = self.functions.as_ref();
        functions.is_some_and(|f| f.origin == Origin::Interpreter)
    }

    /// The language of the module's functions, as saved profiles name it; `None` unless the module has functions without an
    /// ELF file and with this origin.
    pub fn language_from(&self, origin: Origin) -> Option<&'static str> {
        let functions = self.functions.as_ref().filter(|f| f.origin == origin);
        functions.map(|f| f.language.name())
    }

    /// Whether it is [`Module::jit`].
    pub fn is_jit(&self) -> bool {
        // A file's path begins with a slash.
        self.path.as_os_str() == JIT
    }
}

/// The file name and the function name of JIT code.
pub const JIT: &str = "[JIT]";

/// One frame of a stack: a file offset in a module, or an address outside every mapped executable file.
///
/// Packed into 8 bytes, because stacks are the largest part of memprof's own memory. The position is that of the executing
/// or calling instruction: return addresses are stored minus one, which puts them inside the call instruction.
///
/// # Examples
///
/// ```
/// use memprof_profile::{Frame, FrameKind, ModuleId};
///
/// let frame = Frame::code(ModuleId(3), 0x1040);
/// assert_eq!(frame.kind(), FrameKind::Code(ModuleId(3), 0x1040));
/// assert_eq!(Frame::unmapped(0x7f00).kind(), FrameKind::Unmapped(0x7f00));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame(u64);

/// A decoded [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Code in a file: the module and the offset in the file, in bytes.
    Code(ModuleId, u64),
    /// An address where no known executable file was mapped (a corrupt stack, a file mapped very recently).
    Unmapped(u64),
}

impl Frame {
    const SHIFT: u32 = 48;
    const UNMAPPED: u16 = u16::MAX;
    const LOW: u64 = (1 << Self::SHIFT) - 1;

    /// A frame in a module. `offset` is a file offset in bytes, truncated to its low 48 bits.
    pub fn code(module: ModuleId, offset: u64) -> Frame {
        Frame((u64::from(module.0) << Self::SHIFT) | (offset & Self::LOW))
    }

    /// A frame at an address outside every known file.
    pub fn unmapped(addr: u64) -> Frame {
        Frame((u64::from(Self::UNMAPPED) << Self::SHIFT) | (addr & Self::LOW))
    }

    /// Decodes the frame.
    pub fn kind(self) -> FrameKind {
        let module = (self.0 >> Self::SHIFT) as u16;
        if module == Self::UNMAPPED {
            FrameKind::Unmapped(self.0 & Self::LOW)
        } else {
            FrameKind::Code(ModuleId(module), self.0 & Self::LOW)
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind().fmt(f)
    }
}

/// A call stack, innermost frame first.
#[derive(Debug, PartialEq, Eq)]
pub struct Stack {
    /// Frames, innermost first; may be empty.
    pub frames: Box<[Frame]>,
    /// The unwind outcome.
    pub outcome: Outcome,
}
