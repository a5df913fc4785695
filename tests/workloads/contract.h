// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The probes of the samplers' contract, otel_memory:alloc and otel_memory:free, with their semaphores.

#ifndef CONTRACT_H
#define CONTRACT_H

#define SEMAPHORE(name)                                                                  \
	__attribute__((section(".probes"), used, visibility("hidden"))) volatile unsigned short name##_semaphore

/* A probe: its instruction, and its note as <sys/sdt.h> writes it. */
#define NOTE(name, arguments)                                                            \
	"990: nop\n"                                                                     \
	".pushsection .note.stapsdt,\"\",\"note\"\n"                                      \
	".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                    \
	"991: .asciz \"stapsdt\"\n992: .balign 4\n"                                      \
	"993: .8byte 990b, 0, otel_memory_" name "_semaphore\n"                          \
	".asciz \"otel_memory\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n"        \
	"994: .balign 4\n.popsection\n"

#endif
