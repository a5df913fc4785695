/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Reads of user memory. The window is a copy of a section of the user stack: one long read serves many words.
 */
#ifndef MEMPROF_WINDOW_H
#define MEMPROF_WINDOW_H

#include "base.bpf.h"
#include "thread.bpf.h"

/*
 * Reads `words` words into the window, starting `slack` words below `addr`. If they are not all readable, reads only
 * from `addr` to the end of its page. Returns 0 or -1. Global: verified once.
 */
__noinline int read_window(struct task_state *st, __u64 addr, __u32 slack, __u32 words)
{
	__u64 here = (4096 - (addr & 4095)) >> 3;

	if (!st || slack >= words || words > WINDOW_WORDS)
		return -1;
	st->t.window_base = addr - 8 * (__u64)slack;
	st->t.window_words = words;
	if (!bpf_probe_read_user(st->window, words * 8, (void *)st->t.window_base))
		return 0;
	if (here >= WINDOW_WORDS)
		here = WINDOW_WORDS - 1;
	st->t.window_base = addr;
	st->t.window_words = here;
	if (!bpf_probe_read_user(st->window, INDEX(here, WINDOW_WORDS) * 8, (void *)addr))
		return 0;
	st->t.window_words = 0;
	return -1;
}

/* A word of user memory outside the stack, or 0 if it cannot be read. */
static __always_inline __u64 read_word(__u64 addr)
{
	__u64 word = 0;

	if (bpf_probe_read_user(&word, sizeof(word), (void *)addr))
		return 0;
	return word;
}

#endif
