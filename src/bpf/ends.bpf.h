/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Examines the machine code at a return address where tables have no answer: did a call push the address, and does the
 * stack end there?
 */
#ifndef MEMPROF_ENDS_H
#define MEMPROF_ENDS_H

#include "base.bpf.h"
#include "frames.bpf.h"
#include "registers.bpf.h"
#include "thread.bpf.h"

/* Since 2.6. */
struct mm_struct___stack {
	unsigned long start_stack; /* the first thread's stack pointer at the program's start */
} __attribute__((preserve_access_index));

/*
 * Returns 1 if the instruction before an address is a call (or ends in bytes like those of a call), 0 if not, -1 if the
 * code cannot be read. Global: verified once.
 */
__noinline int follows_call(__u64 addr)
{
	__u64 code = 0;

	if (bpf_probe_read_user(&code, sizeof(code), (void *)(addr - sizeof(code))))
		return -1;
#if defined(bpf_target_x86)
	/* call rel32 */
	if ((code >> 24 & 0xff) == 0xe8)
		return 1;
	/* call *…: 0xff, then a byte whose middle bits are 2, then up to five bytes of address */
#pragma unroll
	for (int i = 8; i <= 48; i += 8)
		if ((code >> i & 0x38ff) == 0x10ff)
			return 1;
	return 0;
#elif defined(bpf_target_arm64)
	code >>= 32;
	return (code & 0xfc000000) == 0x94000000 || (code & 0xfffffc1f) == 0xd63f0000; /* bl, blr */
#endif
}

/* Whether a call led to the frame, by the code before the frame's address. */
static __always_inline int was_called(struct task_state *st)
{
	return (st->t.flags & FRAME_CALL) && follows_call(st->t.ip) == 1;
}

/*
 * Maximum distance, in bytes, between the beginning of a stack and the frame whose function ends the thread. musl's
 * functions set both limits. FIRST_THREAD_BYTES is for the first thread: static programs of musl have 400 bytes in the
 * caller. OTHER_THREAD_BYTES is for other threads, whose stacks begin below their thread-local data.
 */
#define FIRST_THREAD_BYTES 2048
#define OTHER_THREAD_BYTES 4096

/*
 * Whether the frame's function ends the thread when the call returns. The C library's start code does: it passes the
 * result to exit() or pthread_exit() at once, and its frame is where the stack begins. musl has no table for this code.
 * At the end of a fiber (boost.context) the call returns to "exit(0)" and an instruction that no program may execute.
 * x86-64 only. Global: verified once.
 */
__noinline int ends_thread(struct task_state *st)
{
#if defined(bpf_target_x86)
	struct mm_struct___stack *mm = (void *)BPF_CORE_READ(bpf_get_current_task_btf(), mm);
	__u64 code[2] = {}, sp;
	__u32 start;

	if (!st)
		return 0;
	sp = st->t.sp;
	if (bpf_probe_read_user(code, sizeof(code), (void *)st->t.ip))
		return 0;
	start = code[0];
	/* xor %rdi, %rdi; call; hlt */
	if (start == 0xe8ff3148)
		return (code[1] & 0xff) == 0xf4;
	/* mov %eax, %edi; call, mov %rax, %rdi; call, or movslq %eax, %rdi; call */
	if ((start & 0xffffff) != 0xe8c789 && start != 0xe8c78948 && start != 0xe8f86348)
		return 0;
	return (mm && BPF_CORE_READ(mm, start_stack) - sp < FIRST_THREAD_BYTES) ||
	       thread_pointer() - sp < OTHER_THREAD_BYTES;
#else
	return 0;
#endif
}

#endif
