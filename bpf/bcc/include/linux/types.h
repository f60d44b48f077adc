/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef GPUMEMPROF_TYPES_H
#define GPUMEMPROF_TYPES_H

typedef signed char s8, __s8;
typedef unsigned char u8, __u8;
typedef short s16, __s16;
typedef unsigned short u16, __u16, __be16, __le16, __sum16;
typedef int s32, __s32, pid_t;
typedef unsigned int u32, __u32, __be32, __le32, __wsum;
typedef long long s64, __s64;
typedef unsigned long long u64, __u64, __be64, __le64;
typedef u64 __aligned_u64 __attribute__((aligned(8)));
typedef _Bool bool;
typedef __SIZE_TYPE__ size_t;
typedef __UINTPTR_TYPE__ uintptr_t;

#endif
