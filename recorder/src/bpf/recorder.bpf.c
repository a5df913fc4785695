// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The recorder's BPF programs. User space loads one of two sources of bytes: packets, or system calls.
 */
#include "calls.bpf.h"
#include "packet.bpf.h"
#include "states.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Adds these types to the program's BTF, from which the skeleton generates the Rust types. */
#define EXPORT(type) struct type _##type SEC(".rodata.types")
EXPORT(record);
EXPORT(counters);
enum record_kind _record_kind SEC(".rodata.types");
enum side _side SEC(".rodata.types");
