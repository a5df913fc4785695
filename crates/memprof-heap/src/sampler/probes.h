/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The probes `otel_memory:alloc` and `otel_memory:free`: a nop each, and a note with its address.
 *
 * The notes have the format of SystemTap's <sys/sdt.h>, which debuggers, bpftrace and libbpf read. The nop is one byte
 * long on x86-64, because every kernel emulates that one. While a listener exists, the kernel keeps the semaphore above
 * 0.
 */
#ifndef MEMPROF_SAMPLER_PROBES_H
#define MEMPROF_SAMPLER_PROBES_H

#include "sampler.h"

extern volatile uint16_t alloc_semaphore, free_semaphore;

#ifdef MEMPROF_SAMPLER_TEST
/*
 * Tests listen inside the process: the library is the same, but it calls the program's functions in place of the nops.
 */
extern __attribute__((weak)) void sampler_test_alloc(void *ptr, size_t size, uint64_t weight);
extern __attribute__((weak)) void sampler_test_free(void *ptr);
#define ALLOC_LISTENED() (sampler_test_alloc != NULL)
#define FREE_LISTENED() (sampler_test_free != NULL)
#else
#define ALLOC_LISTENED() (alloc_semaphore != 0)
#define FREE_LISTENED() (free_semaphore != 0)
#endif

#define NOTE(name, semaphore, arguments) \
	"990: nop\n" \
	".pushsection .note.stapsdt,\"\",\"note\"\n" \
	".balign 4\n" \
	".4byte 992f-991f, 994f-993f, 3\n" \
	"991: .asciz \"stapsdt\"\n" \
	"992: .balign 4\n" \
	"993: .8byte 990b, _.stapsdt.base, " semaphore "\n" \
	".asciz \"otel_memory\"\n" \
	".asciz \"" name "\"\n" \
	".asciz \"" arguments "\"\n" \
	"994: .balign 4\n" \
	".popsection\n" \
	/* Readers correct addresses by the address of this section, in case prelink has moved the file's sections. */ \
	".ifndef _.stapsdt.base\n" \
	".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
	".weak _.stapsdt.base\n" \
	".hidden _.stapsdt.base\n" \
	"_.stapsdt.base: .space 1\n" \
	".size _.stapsdt.base, 1\n" \
	".popsection\n" \
	".endif\n"

#if defined(__x86_64__)
#define FIRST "rdi"
#define SECOND "rsi"
#define THIRD "rdx"
#define ONE "8@%%rdi"
#define THREE "8@%%rdi 8@%%rsi 8@%%rdx"
#elif defined(__aarch64__)
#define FIRST "x0"
#define SECOND "x1"
#define THIRD "x2"
#define ONE "8@x0"
#define THREE "8@x0 8@x1 8@x2"
#else
#error "the probes' registers are not known for this processor"
#endif

static inline __attribute__((always_inline)) void probe_alloc(void *ptr, size_t size, uint64_t weight)
{
#ifdef MEMPROF_SAMPLER_TEST
	if (sampler_test_alloc)
		sampler_test_alloc(ptr, size, weight);
#else
	register void *first __asm__(FIRST) = ptr;
	register size_t second __asm__(SECOND) = size;
	register uint64_t third __asm__(THIRD) = weight;
	__asm__ volatile(NOTE("alloc", "alloc_semaphore", THREE)::"r"(first), "r"(second), "r"(third) : "memory");
#endif
}

static inline __attribute__((always_inline)) void probe_free(void *ptr)
{
#ifdef MEMPROF_SAMPLER_TEST
	if (sampler_test_free)
		sampler_test_free(ptr);
#else
	register void *first __asm__(FIRST) = ptr;
	__asm__ volatile(NOTE("free", "free_semaphore", ONE)::"r"(first) : "memory");
#endif
}

#endif
