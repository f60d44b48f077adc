/*
 * capture_point stands for a hooked call. At its entry it writes what the kernel would capture to
 * the descriptor capture_fd, waits for one byte on capture_go (no wait if that is -1) and returns.
 * It changes no callee-saved register and nothing on the stack above its return address.
 *
 * Record: ip, sp, bp, bx, r12, r13, r14, r15, size (u64 each), then size bytes of stack from sp
 * upwards: up to capture_top, at most capture_size.
 */
	.text
	.globl	capture_point
	.type	capture_point, @function
capture_point:
	.cfi_startproc
	endbr64
	leaq	record(%rip), %rax
	leaq	capture_point(%rip), %rcx
	movq	%rcx, 0(%rax)
	movq	%rsp, 8(%rax)
	movq	%rbp, 16(%rax)
	movq	%rbx, 24(%rax)
	movq	%r12, 32(%rax)
	movq	%r13, 40(%rax)
	movq	%r14, 48(%rax)
	movq	%r15, 56(%rax)
	movq	capture_top(%rip), %rcx
	subq	%rsp, %rcx
	cmpq	capture_size(%rip), %rcx
	cmovaq	capture_size(%rip), %rcx
	movq	%rcx, 64(%rax)
	movl	$1, %eax			/* write(capture_fd, record, 72) */
	movl	capture_fd(%rip), %edi
	leaq	record(%rip), %rsi
	movl	$72, %edx
	syscall
	movq	%rsp, %rsi
	movq	record+64(%rip), %r8
1:	movl	$1, %eax			/* write(capture_fd, sp, size), in as many pieces as it takes */
	movl	capture_fd(%rip), %edi
	movq	%r8, %rdx
	syscall
	testq	%rax, %rax
	jle	2f
	addq	%rax, %rsi
	subq	%rax, %r8
	jnz	1b
2:	xorl	%eax, %eax			/* read(capture_go, &byte, 1) */
	movl	capture_go(%rip), %edi
	leaq	byte(%rip), %rsi
	movl	$1, %edx
	syscall
	ret
	.cfi_endproc
	.size	capture_point, .-capture_point

	.bss
	.balign	8
record:	.skip	72
byte:	.skip	8

	.data
	.globl	capture_fd, capture_go, capture_size, capture_top
	.balign	8
capture_size:	.quad	32768
capture_top:	.quad	-1
capture_fd:	.long	1
capture_go:	.long	0
	.section .note.GNU-stack, "", @progbits
