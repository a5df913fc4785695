/*
 * A program in assembler, without unwind information and without a C library. At the end of each chain, `touch` brings
 * 64 KiB of memory in. Compiled by tests/suite/unwind with -nostdlib -static.
 */
	.macro function name
	.type \name, @function
\name:
	.endm
	.macro end name
	.size \name, . - \name
	.endm

	.bss
	.balign 4096
memory:
	.skip 7 * 65536
	.data
next:
	.quad memory

	.text
	.globl _start
function _start
	xor %ebp, %ebp
	and $-16, %rsp
	call by_depth
	call by_frame
	call by_move
	mov $2, %edi
	call by_switch
	call by_pointer
	lea behind(%rip), %rax
	call *%rax
	call jumping
	xor %edi, %edi
	call die
end _start

function by_depth
	push %rbp
	push %rbx
	sub $0x108, %rsp
	mov $1, %ebp
	push $7
	push next(%rip)
	call touch
	add $16, %rsp
	lea 0x108(%rsp), %rsp
	pop %rbx
	pop %rbp
	ret
end by_depth

function by_frame
	push %rbp
	mov %rsp, %rbp
	push %rbx
	mov $0x1240, %eax
	test %eax, %eax
	js 1f
	sub %rax, %rsp
1:	call touch
	lea -8(%rbp), %rsp
	pop %rbx
	pop %rbp
	ret
end by_frame

function by_move
	sub $24, %rsp
	mov %rbp, 8(%rsp)
	xor %ebp, %ebp
	call touch
	mov 8(%rsp), %rbp
	add $24, %rsp
	ret
end by_move

function by_switch
	push %rbx
	cmp $3, %edi
	ja .Lend
	lea cases(%rip), %rbx
	movslq (%rbx,%rdi,4), %rdi
	add %rbx, %rdi
	jmp *%rdi
.Lone:	push %rdi
	push %rsi
	call touch
	pop %rsi
	pop %rdi
	jmp .Lend
.Ltwo:	push %rsi
	call touch
	pop %rsi
.Lend:	pop %rbx
	ret
end by_switch

function by_pointer
	lea pointed(%rip), %rax
	push %rcx
	call *%rax
	pop %rcx
	ret
end by_pointer

/* Has no symbol. */
pointed:
	push %rbx
	push %rcx
	push %rdx
	call touch
	pop %rdx
	pop %rcx
	pop %rbx
	ret

/* Ends in a call that does not return, where the next function begins, which has no symbol. */
function dying
	test %edi, %edi
	jz 1f
	push %rbx
	push %rcx
	call die
end dying
behind:
	push %rdx
	call touch
	pop %rdx
1:	ret

function jumping
	push %rbx
	mov $0, %edi
	call dying
	pop %rbx
	jmp jumped
end jumping

function jumped
	push %rdx
	call touch
	pop %rdx
	ret
end jumped

function touch
	mov next(%rip), %rdi
	mov $16, %ecx
1:	movb $1, (%rdi)
	add $4096, %rdi
	dec %ecx
	jnz 1b
	mov %rdi, next(%rip)
	ret
end touch

function die
	mov $231, %eax
	syscall
	jmp die
end die

	.section .rodata
	.balign 4
cases:
	.long .Lend - cases, .Lone - cases, .Ltwo - cases, .Lend - cases
	.section .note.GNU-stack, "", @progbits
