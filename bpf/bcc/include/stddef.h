/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef GPUMEMPROF_STDDEF_H
#define GPUMEMPROF_STDDEF_H
#ifndef NULL
#define NULL ((void *)0)
#endif
#undef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
