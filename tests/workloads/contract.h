// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The probes of the samplers' contract, otel_memory:alloc and otel_memory:free, with their semaphores: one for each, or with
// -DSEMAPHORES=1 one for both, or with -DSEMAPHORES=0 none. With -DOUTSIDE they are in memory that the file does not contain.
// With -DBASE the file has a section .stapsdt.base, as of a library that is linked statically.

#ifndef CONTRACT_H
#define CONTRACT_H

#ifndef SEMAPHORES
#define SEMAPHORES 2
#endif
#ifdef OUTSIDE
#define SECTION ".bss.probes"
#else
#define SECTION ".probes"
#endif

#define DEFINED(name) __attribute__((section(SECTION), used, visibility("hidden"))) volatile unsigned short name

#if SEMAPHORES == 0
#define PROBES static const unsigned otel_memory_alloc_semaphore = 1, otel_memory_free_semaphore = 1
#define SEMAPHORE_OF(name) "0"
#elif SEMAPHORES == 1
#define PROBES DEFINED(otel_memory_semaphore)
#define otel_memory_alloc_semaphore otel_memory_semaphore
#define otel_memory_free_semaphore otel_memory_semaphore
#define SEMAPHORE_OF(name) "otel_memory_semaphore"
#else
#define PROBES DEFINED(otel_memory_alloc_semaphore); DEFINED(otel_memory_free_semaphore)
#define SEMAPHORE_OF(name) "otel_memory_" name "_semaphore"
#endif

#ifdef BASE
__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n.space 1\n.popsection");
#endif

/* A probe: its instruction, and its note as <sys/sdt.h> writes it, but without the address of .stapsdt.base. */
#define NOTE(name, arguments)                                                            \
	"990: nop\n"                                                                     \
	".pushsection .note.stapsdt,\"\",\"note\"\n"                                      \
	".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                    \
	"991: .asciz \"stapsdt\"\n992: .balign 4\n"                                      \
	"993: .8byte 990b, 0, " SEMAPHORE_OF(name) "\n"                                   \
	".asciz \"otel_memory\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n"        \
	"994: .balign 4\n.popsection\n"

#endif
