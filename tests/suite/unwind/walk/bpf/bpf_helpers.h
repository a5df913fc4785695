/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Stand-ins for libbpf and the BPF helpers, for user space. The functions are in
 * ../walk.c.
 */
#ifndef STAND_IN_HELPERS_H
#define STAND_IN_HELPERS_H

#define SEC(name)
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))

/* The definition of a map, with the sizes of its keys and values. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) __typeof__(value) *name
#define __array(name, value) __typeof__(value) *name[]

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, __u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
long bpf_loop(__u32 count, void *step, void *context, __u64 flags);
long bpf_find_vma(struct task_struct *task, __u64 addr, void *callback, void *context, __u64 flags);
long bpf_tail_call(void *context, void *map, __u32 index);
long bpf_probe_read_user(void *to, __u32 size, const void *from);
long bpf_probe_read_kernel(void *to, __u32 size, const void *from);
long bpf_probe_read_kernel_str(void *to, __u32 size, const void *from);
struct task_struct *bpf_get_current_task_btf(void);
long bpf_task_pt_regs(struct task_struct *task);
void *bpf_task_storage_get(void *map, struct task_struct *task, void *value, __u64 flags);
long bpf_ringbuf_output(void *ring, void *record, __u64 size, __u64 flags);
__u64 bpf_ringbuf_query(void *ring, __u64 flags);

#endif
