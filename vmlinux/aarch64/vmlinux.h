/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

#include "../kernel_types.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};

struct pt_regs {
	union {
		struct user_pt_regs user_regs;
		struct {
			__u64 regs[31];
			__u64 sp;
			__u64 pc;
			__u64 pstate;
		};
	};
	__u64 orig_x0;
	int syscallno;
};

#pragma clang attribute pop

/* The context of a perf_event program is an ABI of its own (uapi), not relocated. */
struct memprof_user_regs {
	__u64 regs[34];
};

struct bpf_perf_event_data {
	struct memprof_user_regs regs;
	__u64 sample_period;
	__u64 addr;
};

#endif
