/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the programs use of libbpf's header of this name; the helpers themselves bcc declares. */
#ifndef GPUMEMPROF_BPF_HELPERS_H
#define GPUMEMPROF_BPF_HELPERS_H

#define SEC(name)
#define __uint(name, val) int (*name)[val]
#define __type(name, val) val *name
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define barrier_var(var) asm volatile("" : "+r"(var))

/* Of kernels newer than some versions of bcc. */
static __u64 (*gpumemprof_attach_cookie)(void *ctx) = (void *)174;
static __u64 (*gpumemprof_func_ip)(void *ctx) = (void *)173;
#define bpf_get_attach_cookie gpumemprof_attach_cookie
#define bpf_get_func_ip gpumemprof_func_ip

#endif
