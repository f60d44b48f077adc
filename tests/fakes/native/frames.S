/*
 * Hand-written frames: int asm_frames(int (*callee)(int), int n) keeps its frame in rbx, which is
 * what its call-frame information says; it has no symbol size. asm_without_cfi says nothing.
 */
	.text
	.globl	asm_frames
	.type	asm_frames, @function
asm_frames:
	.cfi_startproc
	pushq	%rbx
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset rbx, 0
	movq	%rsp, %rbx
	.cfi_def_cfa_register rbx
	pushq	%r12
	.cfi_offset r12, -24
	movq	%rdi, %r12
	subq	$72, %rsp
	andq	$-64, %rsp
	movl	%esi, %edi
	call	*%r12
	.cfi_remember_state
	leaq	-8(%rbx), %rsp
	popq	%r12
	.cfi_restore r12
	popq	%rbx
	.cfi_def_cfa rsp, 8
	.cfi_restore rbx
	ret
	.cfi_restore_state
	ud2
	.cfi_endproc

	.globl	asm_without_cfi
	.type	asm_without_cfi, @function
asm_without_cfi:
	subq	$8, %rsp
	movq	%rdi, %rax
	movl	%esi, %edi
	call	*%rax
	addq	$8, %rsp
	ret
	.size	asm_without_cfi, .-asm_without_cfi
	.section .note.GNU-stack, "", @progbits
