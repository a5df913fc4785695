/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

#include "../kernel_types.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long r15;
	unsigned long r14;
	unsigned long r13;
	unsigned long r12;
	unsigned long bp;
	unsigned long bx;
	unsigned long r11;
	unsigned long r10;
	unsigned long r9;
	unsigned long r8;
	unsigned long ax;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long flags;
	unsigned long sp;
};

#pragma clang attribute pop

/* The context of a perf_event program is an ABI of its own (uapi), not relocated. */
struct memprof_user_regs {
	unsigned long regs[21];
};

struct bpf_perf_event_data {
	struct memprof_user_regs regs;
	__u64 sample_period;
	__u64 addr;
};

#endif
