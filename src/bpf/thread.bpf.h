/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The state of one thread of a followed process: its current page fault, its pending work, and its last stack walk.
 */
#ifndef MEMPROF_THREAD_H
#define MEMPROF_THREAD_H

#include "base.bpf.h"

/* Words of user stack per read. A read costs about 150 ns, regardless of its length. */
#define WINDOW_WORDS 256
/* Words of a read below the requested word: the words of a frame are not read in order. */
#define WINDOW_SLACK 8
/* Maximum number of words of stack that a cached walk has read. */
#define CACHED_WORDS 128

/* Two independent hashes of a stack: the table's key and its check. */
struct stack_hash {
	__u64 key;
	__u32 check;
	__u32 pad;
};

/* A frame of a walk by tables, in the state in which the walk reached it; see walk.bpf.h. */
struct frame {
	__u64 ip; /* return addresses minus one */
	__u64 key; /* hash of the frames from the outermost to this one; during the walk: encode_frame() */
	__u32 check; /* the other hash */
	__u32 sp; /* stack offset, as in task_state.noted_at */
	__u32 fp; /* stack offset at which the frame pointer register is saved, if FRAME_FP_SAVED */
	__u16 words; /* words of stack read for the hashed frames; during the walk: read before this frame */
	__u16 flags;
};

/* A walk in progress. Without another comment, a field describes the current frame. */
struct walk {
	__u64 ip;
	__u64 sp;
	__u64 fp; /* or the address where it is saved (FRAME_FP_SAVED) */
	__u64 bx;
	__u64 lr;
	struct stack_hash hash;
	__u64 start; /* range and bias of the last mapping found */
	__u64 end;
	__u64 bias;
	__u64 window_base; /* address of the first word in `window` */
	__u32 window_words;
	__u32 table; /* file number of that mapping */
	__u32 flags; /* of the frame, see struct frame; RULE_NEEDS: the known registers */
	__u32 noted; /* number of noted words */
	__u32 nr; /* frames found; after the walk, including those shared with the cached walk */
	__u32 innermost; /* index of the innermost frame in `frames`; its callers are before it */
	__u32 left; /* frames of the cached walk that this walk may still reach */
	__u32 same; /* words of the cached walk, from the outermost frame on, that are not known to differ */
	__u32 shared; /* number of frames shared with the cached walk */
	__u32 outcome;
	__u32 sending; /* id of the stack that is being sent, else 0 */
	__u32 to_send; /* number of frames to send, from `innermost` on */
};

/* The work of do_pending(). */
enum pending_kind {
	PENDING_NONE = 0,
	PENDING_FAULT = 1,
	PENDING_ALLOCATION = 2,
	PENDING_RANGE = 3,
};

struct pending {
	__u32 kind;
	__u32 change; /* of a range */
	union {
		__u32 flags; /* of a range */
		__u32 gfp; /* of an allocation */
	};
	__u32 order;
	__u64 start; /* of a range */
	__u64 end;
};

/* The state of one thread of a followed process. */
struct task_state {
	struct pending pending;
	__u64 fault_address; /* address of the last fault, until its page is allocated; else 0 */
	__u64 fault_ip; /* user registers at the start of the fault */
	__u64 fault_sp;
	__u64 brk; /* end of the heap at the entry of brk */
	__u64 ran; /* CPU time at the thread's last walk, ns; see charge_walk() */
	__u64 mm; /* the address space that mm_id names */
	__u32 mm_id; /* 0: not followed */
	__u32 generation; /* of mm_id */
	__u32 fault_stack; /* record made at the start of the fault; STACK_NONE if the page already had an owner */
	__u32 fault_record; /* share and flags of the fault's record */
	__u8 fault_present; /* a write to a read-only page: copy-on-write */
	__u8 walking; /* a walk reads the stack */
	__u16 pad;
	__u8 interpreted; /* the stack to send has frames of an interpreter */
	__u8 pad1[3];
	__u32 pid; /* pid of the process, see view_pid(); 0 until a stack is sent */
	__u32 epoch; /* of last_id and cached_ids */
	/* The last stack: its hash and id. */
	__u64 last_key;
	__u32 last_id;
	__u32 last_check;
	/* The cached walk: its stack, and how much of `frames` and `words` belongs to it. */
	__u32 cached_ids[2]; /* id for all address spaces, and id for its own; see stack_id(). 0: unknown */
	__u32 cached_mm_id;
	__u32 cached_generation;
	__u32 cached_nr;
	__u32 cached_words;
	__u32 cached_outcome;
	__u64 cached_interpreted; /* hash of the walk's interpreted frames */
	__u64 cached_fp; /* the frame pointer register at the start of the walk */
	__u64 base; /* stack address from which stack offsets count */
	struct walk t;
	/*
	 * Frames, and the words of stack read for them, outermost frame first. A walk fills both from the end
	 * backwards, down to the frames of the cached walk that it may still reach.
	 */
	struct frame frames[MAX_FRAMES];
	__u64 noted[CACHED_WORDS];
	__u32 noted_at[CACHED_WORDS]; /* their stack offsets: distances from `base` in words */
	/* Scratch space: the window on the stack, then the record to send. */
	union {
		__u64 window[WINDOW_WORDS];
		struct stack_event event;
		struct function_event function;
	};
};

/*
 * Since 6.19 (f484f4a3e058 "bpf: Replace bpf memory allocator with kmalloc_nolock() in local storage") an element of
 * task storage has at most 8 KiB, and the kernel needs about 100 bytes of it.
 */
_Static_assert(sizeof(struct task_state) <= 8192 - 128, "task_state");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

static __always_inline void hash_word(struct stack_hash *h, __u64 word)
{
	h->key = (h->key ^ word) * 0xff51afd7ed558ccdull;
	h->key ^= h->key >> 32;
	h->check = (h->check + (__u32)(word ^ word >> 29)) * 0x9e3779b1u;
	h->check ^= h->check >> 15;
}

#endif
