/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#if defined(__TARGET_ARCH_x86)
#define bpf_target_x86
#elif defined(__TARGET_ARCH_arm64)
#define bpf_target_arm64
#endif

/* Some hooks have the names of C functions. */
#define BPF_PROG(name, ...) hook_##name(__VA_ARGS__)
