//! Offsets in CPython's structures, by minor version. The structures do not change within a minor version.

/// How frames are linked, and how the C stack frame of each evaluator is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameLayout {
    /// 3.8 and 3.9: each evaluator runs one frame object.
    Objects = 1,
    /// 3.10: each evaluator runs one frame object, and has a `CFrame` on the C stack.
    ObjectsCframes = 2,
    /// 3.11: an evaluator runs frames up to one with `is_entry`, and has a `_PyCFrame` on the C stack.
    Cframes = 3,
    /// 3.12: an evaluator runs frames up to a shim, a frame on the C stack; the thread has a `_PyCFrame`.
    ShimsCframe = 4,
    /// From 3.13 on: an evaluator runs frames up to a shim.
    Shims = 5,
}

/// Offsets in CPython's structures, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The minor version.
    pub version: u16,
    /// How frames are linked.
    pub frames: FrameLayout,
    /// `_PyRuntimeState`: `autoTSSkey`.
    pub key: u16,
    /// `_PyRuntimeState`: `gilstate.tstate_current`; 0 if not used. 3.12 has no such field. In 3.8 and 3.9 nothing
    /// identifies the evaluators of a thread that belong to a subinterpreter.
    pub current: u16,
    /// `PyThreadState`: `thread_id`.
    pub thread_id: u16,
    /// `PyThreadState`: `frame`, `cframe` or `current_frame`.
    pub thread_frame: u16,
    /// `_PyCFrame`: `current_frame`; in 3.10 `PyThreadState`: `cframe`.
    pub cframe_frame: u16,
    /// `_PyCFrame`: `previous`.
    pub cframe_previous: u16,
    /// `PyFrameObject` or `_PyInterpreterFrame`: `f_code` or `f_executable`.
    pub frame_code: u16,
    /// `PyFrameObject` or `_PyInterpreterFrame`: `f_back` or `previous`.
    pub frame_previous: u16,
    /// `PyFrameObject` or `_PyInterpreterFrame`: `f_lasti`, `prev_instr` or `instr_ptr`.
    pub frame_instruction: u16,
    /// `_PyInterpreterFrame`: `is_entry` or `owner`, a byte.
    pub frame_entry: u16,
    /// `PyCodeObject`: `co_flags`.
    pub code_flags: u16,
    /// `PyCodeObject`: `co_firstlineno`.
    pub code_first_line: u16,
    /// `PyCodeObject`: `co_filename`.
    pub code_file: u16,
    /// `PyCodeObject`: `co_qualname`, before 3.11 `co_name`.
    pub code_name: u16,
    /// `PyCodeObject`: `co_linetable`, before 3.10 `co_lnotab`.
    pub code_lines: u16,
    /// `PyCodeObject`: `co_code_adaptive`, the first instruction; 0 before 3.11.
    pub code_start: u16,
    /// Bytes per unit of `f_lasti`, before 3.11.
    pub instruction_size: u16,
    /// Size of `PyASCIIObject`, which the characters of an ASCII string follow.
    pub text_ascii: u16,
    /// Size of `PyCompactUnicodeObject`, which the characters of any other string follow.
    pub text_compact: u16,
    /// Lowest bit of `kind` in `PyASCIIObject.state`.
    pub text_kind: u16,
}

const PYTHON_3_8: Layout = Layout {
    version: 8,
    frames: FrameLayout::Objects,
    key: 0x570,
    current: 0,
    thread_id: 0xb0,
    thread_frame: 0x18,
    cframe_frame: 0,
    cframe_previous: 0,
    frame_code: 0x20,
    frame_previous: 0x18,
    frame_instruction: 0x68,
    frame_entry: 0,
    code_flags: 0x24,
    code_first_line: 0x28,
    code_file: 0x68,
    code_name: 0x70,
    code_lines: 0x78,
    code_start: 0,
    instruction_size: 1,
    text_ascii: 48,
    text_compact: 72,
    text_kind: 2,
};

const PYTHON_3_9: Layout = Layout {
    version: 9,
    key: 0x248,
    ..PYTHON_3_8
};

const PYTHON_3_10: Layout = Layout {
    version: 10,
    frames: FrameLayout::ObjectsCframes,
    current: 0x238,
    cframe_frame: 0x30,
    cframe_previous: 8,
    frame_instruction: 0x60,
    instruction_size: 2,
    ..PYTHON_3_9
};

const PYTHON_3_11: Layout = Layout {
    version: 11,
    frames: FrameLayout::Cframes,
    key: 0x250,
    current: 0x240,
    thread_id: 0x98,
    thread_frame: 0x38,
    cframe_frame: 8,
    cframe_previous: 0x10,
    frame_code: 0x20,
    frame_previous: 0x30,
    frame_instruction: 0x38,
    frame_entry: 0x44,
    code_flags: 0x30,
    code_first_line: 0x48,
    code_file: 0x70,
    code_name: 0x80,
    code_lines: 0x88,
    code_start: 0xb8,
    ..PYTHON_3_10
};

const PYTHON_3_12: Layout = Layout {
    version: 12,
    frames: FrameLayout::ShimsCframe,
    key: 0x608,
    current: 0,
    thread_id: 0x88,
    cframe_frame: 0,
    cframe_previous: 8,
    frame_code: 0,
    frame_previous: 8,
    frame_entry: 0x46,
    code_first_line: 0x44,
    code_start: 0xc0,
    text_ascii: 40,
    text_compact: 56,
    ..PYTHON_3_11
};

const PYTHON_3_13: Layout = Layout {
    version: 13,
    frames: FrameLayout::Shims,
    key: 0x870,
    thread_id: 0x98,
    thread_frame: 0x48,
    code_start: 0xc8,
    ..PYTHON_3_12
};

const PYTHON_3_14: Layout = Layout {
    version: 14,
    key: 0x920,
    frame_entry: 0x4a,
    code_start: 0xd0,
    ..PYTHON_3_13
};

const ALL: [Layout; 7] = [
    PYTHON_3_8,
    PYTHON_3_9,
    PYTHON_3_10,
    PYTHON_3_11,
    PYTHON_3_12,
    PYTHON_3_13,
    PYTHON_3_14,
];

impl Layout {
    /// The layout of 3.`minor`.
    pub fn for_version(minor: u16) -> Option<&'static Layout> {
        static LAYOUTS: [Layout; 7] = ALL;
        LAYOUTS.iter().find(|layout| layout.version == minor)
    }
}
