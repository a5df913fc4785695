/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Differences between kernels. Each guard names the version and the change that made it necessary.
 */
#ifndef MEMPROF_COMPAT_H
#define MEMPROF_COMPAT_H

#include "base.bpf.h"

/*
 * A program that may run several times at once on one processor: at a uprobe, or reached by a tail call. A preemptive
 * kernel may run it there for another thread, too (README.md).
 *
 * Such a program must have no private stack. From 6.13 on (e00931c02568 "bpf: Enable private stack for eligible
 * subprogs"; on 64-bit ARM from 6.18 on) a program of these types with 64 bytes of stack or more has one private stack
 * for each processor, and two runs would share it. The kernel gives no private stack to a program that contains a tail
 * call. The tail call here leads nowhere: `nowhere` is an empty array, one for each attach type (4540aed51b12 "bpf:
 * Enforce expected_attach_type for tailcall compatibility", 6.18 and stable series). The tail call comes first: after
 * the work, `ctx` would occupy stack meanwhile.
 */
#define REENTRANT(section, name, nowhere)                     \
	static __always_inline void run_##name(void *ctx);    \
	SEC(section)                                          \
	int name(void *ctx)                                   \
	{                                                     \
		bpf_tail_call(ctx, &nowhere, 0);              \
		run_##name(ctx);                              \
		return 0;                                     \
	}                                                     \
	static __always_inline void run_##name(void *ctx)

struct no_programs {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
};

/* 5.18 "mm: Add folio_nr_pages" cached the count as _folio_nr_pages (64-bit kernels); 6.15
 * "mm: factor out large folio handling from folio_nr_pages()" renamed it _nr_pages. */
struct folio___v518 {
	unsigned int _folio_nr_pages;
} __attribute__((preserve_access_index));

/* Number of base pages in a page-cache folio. */
static __always_inline __u32 folio_pages(struct folio *folio)
{
	unsigned long flags = 0;

	/* The page flags are the first word of a folio in every kernel; 6.18 "mm: introduce
	 * memdesc_flags_t" made their type a struct, for which a relocation by name fails. */
	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags & (1ul << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(folio->_nr_pages))
		return BPF_CORE_READ(folio, _nr_pages);
	struct folio___v518 *old = (void *)folio;
	if (bpf_core_field_exists(old->_folio_nr_pages))
		return BPF_CORE_READ(old, _folio_nr_pages);
	return 1;
}

/* 6.7 "fs: rename inode i_atime and i_mtime fields" added the underscores; 6.11 "fs: switch timespec64 fields in
 * inode to discrete integers" split the field. */
struct timespec64___v66 {
	__s64 tv_sec;
	long tv_nsec;
} __attribute__((preserve_access_index));

struct inode___v66 {
	struct timespec64___v66 i_mtime;
} __attribute__((preserve_access_index));

struct inode___v67 {
	struct timespec64___v66 __i_mtime;
} __attribute__((preserve_access_index));

/* Modification time of a file, in ns. */
static __always_inline __u64 modified_ns(struct inode *inode)
{
	struct inode___v67 *v67 = (void *)inode;
	struct inode___v66 *v66 = (void *)inode;

	if (bpf_core_field_exists(inode->i_mtime_sec))
		return BPF_CORE_READ(inode, i_mtime_sec) * 1000000000ull + BPF_CORE_READ(inode, i_mtime_nsec);
	if (bpf_core_field_exists(v67->__i_mtime))
		return BPF_CORE_READ(v67, __i_mtime.tv_sec) * 1000000000ull + BPF_CORE_READ(v67, __i_mtime.tv_nsec);
	return BPF_CORE_READ(v66, i_mtime.tv_sec) * 1000000000ull + BPF_CORE_READ(v66, i_mtime.tv_nsec);
}

/* System calls that change address spaces, their functions and arguments, and the number of the current call. */
#if defined(bpf_target_x86)
#define SYSCALL_FUNCTION "__x64_sys_"
#define SYSCALL_FUNCTION_UNUSED "__do_sys_getppid"
#define SYSCALL_WRITE 1
#define SYSCALL_MMAP 9
#define SYSCALL_MPROTECT 10
#define SYSCALL_MUNMAP 11
#define SYSCALL_BRK 12
#define SYSCALL_MREMAP 25
#define SYSCALL_MADVISE 28
#define SYSCALL_EXECVE 59
#define SYSCALL_MLOCK 149
#define SYSCALL_MLOCKALL 151
#define SYSCALL_EXIT_GROUP 231
#define SYSCALL_EXECVEAT 322
#define SYSCALL_MLOCK2 325
#define SYSCALL_PKEY_MPROTECT 329
#define SYSCALL_NR(r) ((r)->orig_ax)
#define SYSCALL_ARG1(r) ((r)->di)
#define SYSCALL_ARG2(r) ((r)->si)
#define SYSCALL_ARG3(r) ((r)->dx)
#define SYSCALL_ARG4(r) ((r)->r10)
#define SYSCALL_ARG5(r) ((r)->r8)
#define TS_COMPAT 2
#elif defined(bpf_target_arm64)
#define SYSCALL_FUNCTION "__arm64_sys_"
#define SYSCALL_FUNCTION_UNUSED "__arm64_sys_getppid"
#define SYSCALL_WRITE 64
#define SYSCALL_EXIT_GROUP 94
#define SYSCALL_BRK 214
#define SYSCALL_MUNMAP 215
#define SYSCALL_MREMAP 216
#define SYSCALL_EXECVE 221
#define SYSCALL_MMAP 222
#define SYSCALL_MPROTECT 226
#define SYSCALL_MLOCK 228
#define SYSCALL_MLOCKALL 230
#define SYSCALL_MADVISE 233
#define SYSCALL_EXECVEAT 281
#define SYSCALL_MLOCK2 284
#define SYSCALL_PKEY_MPROTECT 288
#define SYSCALL_NR(r) ((__u64)(r)->syscallno)
#define SYSCALL_ARG1(r) ((r)->orig_x0)
#define SYSCALL_ARG2(r) ((r)->regs[1])
#define SYSCALL_ARG3(r) ((r)->regs[2])
#define SYSCALL_ARG4(r) ((r)->regs[3])
#define SYSCALL_ARG5(r) ((r)->regs[4])
#define TIF_32BIT 22
#endif

/* 6.2 "mm: convert mm's rss stats into percpu_counter" (f1a7941243c1) made the counters an array of structs. */
struct mm_rss_stat___v61 {
	atomic_long_t count[RSS_COUNTERS];
} __attribute__((preserve_access_index));

struct mm_struct___v61 {
	struct mm_rss_stat___v61 rss_stat;
} __attribute__((preserve_access_index));

/*
 * One of an address space's counters, in pages: its common part, from which VmHWM is computed, too. Processors (up to
 * 6.1, threads) add to it in batches. A macro, because a relocated index must be a constant.
 */
#define MM_COUNTER(mm, which)                                                           \
	({                                                                              \
		struct mm_struct___v61 *_old = (void *)(mm);                            \
		__s64 _n;                                                               \
		if (bpf_core_field_exists(_old->rss_stat.count))                        \
			_n = BPF_CORE_READ(_old, rss_stat.count[which].counter);        \
		else                                                                    \
			_n = BPF_CORE_READ(mm, rss_stat[which].count);                  \
		_n > 0 ? (__u64)_n : 0;                                                 \
	})

/* Whether the current system call is a 32-bit call, whose numbers mean other calls. */
static __always_inline int is_compat(struct task_struct *task)
{
#if defined(bpf_target_x86)
	return task->thread_info.status & TS_COMPAT;
#else
	return (task->thread_info.flags >> TIF_32BIT) & 1;
#endif
}

#endif
