/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The registers of a program, as the kernel hands them to every probe (x86-64). */
#ifndef GPUMEMPROF_PTRACE_H
#define GPUMEMPROF_PTRACE_H

struct pt_regs {
	unsigned long r15, r14, r13, r12, rbp, rbx;
	unsigned long r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
	unsigned long orig_rax, rip, cs, eflags, rsp, ss;
};

#endif
