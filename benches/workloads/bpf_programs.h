// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Which BPF programs ran, how often and for how long: the kernel's own counts, while kernel.bpf_stats_enabled is 1.

#ifndef BPF_PROGRAMS_H
#define BPF_PROGRAMS_H

#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "workload.h"

enum { MAX_PROGRAMS = 256 };

struct runs {
	int count;
	struct bpf_prog_info program[MAX_PROGRAMS];
};

static inline int bpf_call(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static inline void read_runs(struct runs *runs)
{
	union bpf_attr next = { 0 };

	runs->count = 0;
	while (runs->count < MAX_PROGRAMS && bpf_call(BPF_PROG_GET_NEXT_ID, &next) == 0) {
		union bpf_attr open = { .prog_id = next.next_id }, info = { 0 };
		struct bpf_prog_info *program = &runs->program[runs->count];

		next.start_id = next.next_id;
		info.info.bpf_fd = (uint32_t)bpf_call(BPF_PROG_GET_FD_BY_ID, &open);
		if ((int)info.info.bpf_fd < 0)
			continue;
		memset(program, 0, sizeof(*program));
		info.info.info_len = sizeof(*program);
		info.info.info = (uintptr_t)program;
		runs->count += bpf_call(BPF_OBJ_GET_INFO_BY_FD, &info) == 0;
		close((int)info.info.bpf_fd);
	}
}

// Prints `program PATH NAME RUNS INSTRUCTIONS` for each program that ran: the runs for each operation, and the instructions of
// all of them.
static inline void print_runs(const char *path, const struct runs *before, const struct runs *after, double operations)
{
	for (int i = 0; i < after->count; i++) {
		const struct bpf_prog_info *program = &after->program[i];
		uint64_t count = program->run_cnt, time = program->run_time_ns;

		for (int k = 0; k < before->count; k++) {
			if (before->program[k].id != program->id)
				continue;
			count -= before->program[k].run_cnt;
			time -= before->program[k].run_time_ns;
		}
		if ((double)count >= operations / 1000)
			printf("program %s %s %.3f %.1f\n", path, program->name, (double)count / operations,
			       (double)time / operations);
	}
}

#endif
