/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The plan of detours that memprof appends to its copy of the file (sampler/plan.rs), and their state in a process.
 */
#ifndef MEMPROF_SAMPLER_DETOURS_H
#define MEMPROF_SAMPLER_DETOURS_H

#include "sampler.h"

#define JUMP 5      /* size of a jump with a 32-bit distance */
#define SLOT 192    /* size of the code of a detour */
#define MOVED 128   /* offset of the moved instructions in it */
#define DISPLACED 16 /* maximum number of displaced bytes */
#define MAX_DETOURS 256

enum detour_kind {
	ALLOCATES = 0,
	ALLOCATES_OR_THROWS = 1,
	RESIZES = 2,
	RESIZES_OR_FREES = 3,
	STORES = 4,
	FREES = 5,
	KINDS = 6,
};

#define NO_ARGUMENT 0xff

/* A function of the program's executable. Addresses are the file's own. */
struct planned {
	uint64_t address;
	/* Indices of arguments: size, number of elements, block or place of the result. */
	uint8_t size, count, pointer;
	uint8_t kind;   /* enum detour_kind */
	uint8_t length; /* number of displaced bytes */
	uint8_t entry;  /* offset in its code of the instruction to which the jump leads; not 0: most calls are quick */
	uint8_t unused[2];
	uint8_t displaced[DISPLACED];
};

struct plan {
	uint64_t count;
	int64_t near;         /* address of the code */
	uint64_t code;        /* offset of the code from the plan, in the file */
	uint64_t code_bytes;  /* whole pages */
	uint64_t words_bytes; /* whole pages: three words for each detour, after the code */
	struct planned functions[];
};

/* Their state, which memprof reads from the target. */
struct detours {
	uint64_t state; /* enum detours_state */
	uint64_t count; /* detours whose code is in place */
	uint64_t error; /* of the system call that failed; 0: none failed */
	uint64_t base;  /* the executable's load bias */
	uint64_t left;  /* distance of the thread's bytes before the next sample from the thread's address; 0: without a loader */
};
enum detours_state {
	DETOURS_NONE = 0,        /* there is no plan */
	DETOURS_OTHER = 1,       /* the plan is not of this process's executable */
	DETOURS_PREPARED = 2,    /* the code is in place, and memprof writes the jumps */
	DETOURS_PLACED = 3,
	DETOURS_NO_FILE = 4,     /* the library's file cannot be opened or mapped */
	DETOURS_NO_ROOM = 5,     /* other memory is where the code belongs */
	DETOURS_NOT_WRITTEN = 6, /* the kernel does not let the executable's code be changed */
	DETOURS_THREADS = 7,     /* the process has several threads already */
};
extern struct detours memprof_heap_detours;

/* Called once, when the library starts. */
void place_detours(const char *own_path);

#endif
