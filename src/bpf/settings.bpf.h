/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Settings that user space writes before it loads the programs.
 */
#ifndef MEMPROF_SETTINGS_H
#define MEMPROF_SETTINGS_H

#include "base.bpf.h"

const volatile __u32 page_shift = 12;

/* memprof's pid namespace. Pids in records are relative to it. */
const volatile __u32 view_ns = 0;

/* Ring buffer fill level, in bytes, that triggers a wakeup. */
const volatile __u32 wake_bytes = 65536;

const volatile __u8 follow_forks = 0;
/* The awaited process name, as in comm: at most 15 characters, padded with zeros. */
const volatile char wanted_comm[16] = {};

/*
 * How stacks are walked: enum unwind_mode. Not a constant: the verifier would then remove the code that a mode does not
 * need, and 6.18 refuses to compile the rest ("verifier bug: No program to jit").
 */
volatile __u8 unwind_mode = UNWIND_AUTO;

/* Maximum number of frames walked per stack; at least MAX_FRAMES. */
volatile __u32 max_frames = MAX_FRAMES;

#endif
