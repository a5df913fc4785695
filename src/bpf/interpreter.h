/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The part of memprof.h for interpreters: types that the BPF program and user space share.
 */
#ifndef MEMPROF_INTERPRETER_TYPES_H
#define MEMPROF_INTERPRETER_TYPES_H

enum interpreter_kind {
	INTERPRETER_PYTHON = 1,
	INTERPRETER_RUBY = 2,
};

/* A text in a target's memory. */
struct sent_text {
	__u32 length; /* characters of the whole text; bytes for UTF-8 */
	__u32 sent; /* bytes copied: the first bytes of a name, the last bytes of a file's name */
	__u32 width; /* bytes per character; or TEXT_UTF8 */
	__u32 ascii;
};

#define TEXT_UTF8 8

/* A function of an interpreted program. */
struct function_event {
	__u32 kind;
	__u32 mm_id;
	__u32 pid; /* in memprof's pid namespace */
	__u32 function;
	__u64 code; /* address of its code object */
	__u64 lines; /* address of its table of lines */
	__u32 check; /* distinguishes code objects that have the same address one after the other */
	__u32 interpreter; /* enum interpreter_kind */
	__u32 version; /* version of the interpreter: Python's minor version, or as in struct ruby_layout */
	__u32 first_line;
	__u32 lines_size; /* bytes; 0 if the probe itself looks lines up */
	__u32 singleton; /* whether `owner` has it as a singleton method */
	struct sent_text name;
	struct sent_text file;
	struct sent_text owner; /* name of its class; its text is at the start of lines_table; width 0 without a class */
	__u8 name_text[MAX_NAME];
	__u8 file_text[MAX_FILE_NAME];
	__u8 lines_table[MAX_LINES]; /* if the table fits; only `lines_size` bytes are sent */
};

_Static_assert(sizeof(struct function_event) == 104 + MAX_NAME + MAX_FILE_NAME + MAX_LINES, "function_event");

/* How a CPython version links its frames, and how its frames are matched to evaluators on the C stack. */
enum python_frames {
	PYTHON_OBJECTS = 1, /* 3.8, 3.9: one frame for each evaluator, without a link between them */
	PYTHON_OBJECTS_CFRAMES = 2, /* 3.10: a frame and a CFrame for each evaluator; the CFrame is in its stack frame */
	PYTHON_CFRAMES = 3, /* 3.11: a CFrame for each evaluator, and several frames, up to one with is_entry */
	PYTHON_SHIMS_CFRAME = 4, /* 3.12: several frames, then a shim in the evaluator's stack frame */
	PYTHON_SHIMS = 5, /* since 3.13: as PYTHON_SHIMS_CFRAME, but the thread's state points to the innermost frame */
};

/* Offsets in a CPython version's structures, in bytes. */
struct python_layout {
	__u16 version; /* minor version */
	__u16 frames; /* enum python_frames */
	__u16 key; /* offset of autoTSSkey in _PyRuntime */
	__u16 thread_id; /* in PyThreadState */
	__u16 thread_frame; /* the innermost frame, or the cframe */
	__u16 cframe_frame; /* in _PyCFrame: the innermost frame; 3.10: in PyThreadState: cframe */
	__u16 cframe_previous;
	__u16 frame_code; /* in a frame */
	__u16 frame_previous;
	__u16 frame_instruction;
	__u16 frame_entry; /* a byte: is_entry, or owner */
	__u16 code_flags; /* in PyCodeObject */
	__u16 code_first_line;
	__u16 code_file;
	__u16 code_name;
	__u16 code_lines;
	__u16 code_start; /* start of the instructions; 0: frames have an index of instructions */
	__u16 instruction_size; /* bytes per unit of that index */
	__u16 text_ascii; /* in PyUnicodeObject: the characters */
	__u16 text_compact;
	__u16 text_kind; /* first bit of the kind in a text's state */
	__u16 current; /* in _PyRuntime: the state of the thread with the GIL; 0: does not exist */
	__u16 pad[2];
};

/* Offsets in a Ruby version's structures, in bytes. */
struct ruby_layout {
	__u16 version; /* major version × 256 + minor version */
	__u16 frame_size; /* of rb_control_frame_t */
	__u16 first_line_shift; /* 1: first_lineno is an Integer object, 0: it is a C int */
	__u16 insns_info; /* in rb_iseq_constant_body */
	__u16 parent; /* in rb_iseq_constant_body: parent_iseq */
	__u16 text_embedded; /* in RString: the characters of a text that is embedded in the object */
	__u16 text_length; /* length of an embedded text; 0: the flags contain it */
	__u16 class_path; /* in RClass, including its rb_classext_t: classpath; 0: names have no class */
	__u16 class_attached; /* in RClass, likewise: the object of a singleton class */
	__u16 joins_rescue; /* a rescue clause and its function are one frame */
	__u16 is_program; /* the interpreter is the program itself, whose thread-local storage is module 1 */
	__u16 tls_words; /* words of thread-local storage; one of them is ruby_current_ec */
};

/* A function of an interpreted program. */
struct function_key {
	__u64 code; /* address of its code object */
	__u32 mm_id;
	__u32 check;
};

/* A file with an interpreter. Addresses are the file's own. */
struct interpreter_file {
	struct python_layout python;
	struct ruby_layout ruby;
	__u32 kind; /* enum interpreter_kind */
	__u32 pad;
	__u64 runtime; /* _PyRuntime; Ruby: where the dynamic loader writes the module number for thread-local storage */
	__u64 code_type; /* PyCode_Type; Ruby: 0 */
	__u64 evaluator; /* _PyEval_EvalFrameDefault; vm_exec */
	__u64 evaluator_end;
};

/* The interpreter of an address space. */
struct interpreter_space {
	struct python_layout python;
	struct ruby_layout ruby;
	__u32 kind;
	__u32 module; /* Ruby: module number for thread-local storage; 0: unknown */
	__u64 runtime; /* address of the runtime; 0: no interpreter */
	__u64 code_type;
	__u64 evaluator;
	__u64 evaluator_end;
	__u32 checked; /* version of the mappings, and number of files, at the last search */
	__u32 slot; /* position of the thread's state in the thread's memory; 0: unknown */
	__u32 jump_buffer; /* Ruby: enum jump_buffer */
	__u32 pad;
};

/* How Ruby's jump buffers store the target of an exception. */
enum jump_buffer {
	JUMP_BUFFER_UNKNOWN = 0,
	JUMP_BUFFER_BUILTIN = 1, /* the compiler's __builtin_setjmp */
	JUMP_BUFFER_LIBC = 2, /* the C library's setjmp */
};

_Static_assert(sizeof(struct python_layout) == 48, "python_layout");
_Static_assert(sizeof(struct ruby_layout) == 24, "ruby_layout");
_Static_assert(sizeof(struct interpreter_file) == 112, "interpreter_file");

#endif
