/*
 * capture_point: stands for a hooked call. At its entry it writes a record of its caller's state to
 * the descriptor in capture_fd, as the kernel would capture it, then waits for one byte on
 * capture_go and returns. No other register or memory of the program is touched.
 *
 * Record: ip, sp, bp, bx, r12, r13, r14, r15 (u64 each), then the window: bytes from sp upwards,
 * up to capture_top. Lengths follow from the size of what was written.
 */
	.text
	.globl	capture_point
	.type	capture_point, @function
capture_point:
	.cfi_startproc
	endbr64
	leaq	capture_record(%rip), %rax
	leaq	capture_point(%rip), %rcx
	movq	%rcx, 0(%rax)
	movq	%rsp, 8(%rax)
	movq	%rbp, 16(%rax)
	movq	%rbx, 24(%rax)
	movq	%r12, 32(%rax)
	movq	%r13, 40(%rax)
	movq	%r14, 48(%rax)
	movq	%r15, 56(%rax)
	movl	$1, %eax		/* write(capture_fd, capture_record, 64) */
	movl	capture_fd(%rip), %edi
	leaq	capture_record(%rip), %rsi
	movl	$64, %edx
	syscall
	movl	$1, %eax		/* write(capture_fd, sp, capture_size): stops where memory ends */
	movl	capture_fd(%rip), %edi
	movq	%rsp, %rsi
	movq	capture_size(%rip), %rdx
	syscall
	xorl	%eax, %eax		/* read(capture_go, &byte, 1) */
	movl	capture_go(%rip), %edi
	leaq	capture_byte(%rip), %rsi
	movl	$1, %edx
	syscall
	ret
	.cfi_endproc
	.size	capture_point, .-capture_point

	.bss
	.balign	8
capture_record:	.skip	64
capture_byte:	.skip	8

	.data
	.globl	capture_fd, capture_go, capture_size
capture_fd:	.long	1
capture_go:	.long	0
capture_size:	.quad	32768
	.section .note.GNU-stack, "", @progbits
