/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel types that memprof's BPF program reads, reduced to the fields it uses and taken from
 * BTF (bpftool btf dump file /sys/kernel/btf/vmlinux format c, Linux 6.18). Offsets here do not
 * matter: every access is relocated at load time (CO-RE) against the running kernel's own BTF.
 * What differs between architectures is in <arch>/vmlinux.h, which includes this file.
 */
#ifndef MEMPROF_KERNEL_TYPES_H
#define MEMPROF_KERNEL_TYPES_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;

typedef __s8 s8;
typedef __u8 u8;
typedef __s16 s16;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;

typedef __u16 __le16;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;

typedef int bool_t;
typedef unsigned int gfp_t;
typedef int pid_t;
typedef unsigned int dev_t;
typedef unsigned short umode_t;
typedef __u64 loff_t;

enum {
	false = 0,
	true = 1,
};

enum bpf_map_type {
	BPF_MAP_TYPE_UNSPEC = 0,
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
};

enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
};

enum {
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
};

enum {
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_CONS_POS = 2,
};

enum {
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

enum pageflags {
	PG_head = 6,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct thread_info {
	unsigned long flags;
	unsigned int status; /* x86 alone */
};

struct signal_struct {
	atomic_t live;
};

typedef struct {
	void *vdso;
} mm_context_t;

typedef struct {
	long counter;
} atomic_long_t;

struct percpu_counter {
	s64 count;
};

struct mm_struct {
	atomic_long_t pgtables_bytes;
	struct percpu_counter rss_stat[4];
	unsigned long hiwater_rss;
	unsigned long mmap_base;
	unsigned long start_code;
	unsigned long end_code;
	unsigned long brk;
	unsigned long def_flags;
	mm_context_t context;
};

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 nr_migrations;
};

struct thread_struct {
#if defined(__TARGET_ARCH_x86)
	unsigned long fsbase;
#endif
};

struct task_struct {
	struct thread_info thread_info;
	void *stack;
	struct thread_struct thread;
	unsigned int flags;
	unsigned int ptrace;
	struct sched_entity se;
	struct mm_struct *mm;
	int exit_signal;
	pid_t pid;
	pid_t tgid;
	struct completion *vfork_done;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct files_struct *files;
	char comm[16];
};

struct super_block {
	dev_t s_dev;
	unsigned long s_magic;
};

struct inode {
	umode_t i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	unsigned int i_nlink;
	loff_t i_size;
	__s64 i_mtime_sec;
	__u32 i_mtime_nsec;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
	loff_t f_pos;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

struct address_space {
	struct inode *host;
};

struct page;

struct folio {
	struct address_space *mapping;
	unsigned long index;
	unsigned int _nr_pages;
};


struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
};

#pragma clang attribute pop

/* The context of a raw_tp program is an ABI of its own (uapi), not relocated. */
struct bpf_raw_tracepoint_args {
	__u64 args[12];
};

#endif
