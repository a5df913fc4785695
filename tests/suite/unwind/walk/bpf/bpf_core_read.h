/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#define READ_1(a, b) ((a)->b)
#define READ_2(a, b, c) ((a)->b->c)
#define READ_3(a, b, c, d) ((a)->b->c->d)
#define READ_4(a, b, c, d, e) ((a)->b->c->d->e)
#define READ_OF(a, b, c, d, e, which, ...) which
#define BPF_CORE_READ(...) READ_OF(__VA_ARGS__, READ_4, READ_3, READ_2, READ_1)(__VA_ARGS__)
#define bpf_core_field_exists(...) 1
#define bpf_core_enum_value(type, value) (value)
