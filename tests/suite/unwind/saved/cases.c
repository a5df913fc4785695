/*
 * Call chains whose innermost function stops at an illegal instruction. `cases CASE` then prints the registers and the
 * stack. regenerate.sh compiles it, and ../saved.rs reads its output.
 *
 * Without a C library, so that the program is small and all of its code is here.
 */
#define NOINLINE __attribute__((noipa))
/* After a call: prevents a tail call. */
#define STAY() __asm__ volatile("" ::: "memory")

typedef unsigned long word;

/* No relocations: there is no loader. */
#pragma GCC visibility push(hidden)

#if defined(__aarch64__)
#define STOP() __asm__ volatile("udf #0" ::: "memory")
#define TRAP() __asm__ volatile("brk #0" ::: "memory")
enum { WRITE = 64, KILL = 129, ACTION = 134, ALTSTACK = 132, GETPID = 172, EXIT = 94 };
/* Words of struct ucontext. */
enum { IP = 23 + 32, SP = 23 + 31, FP = 23 + 29, LR = 23 + 30, BX = 0 };

static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
		      x2 __asm__("x2") = c, x3 __asm__("x3") = d;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

__asm__(".globl _start\n.type _start, %function\n_start:\n"
	".cfi_startproc\n.cfi_undefined x30\n"
	"mov x0, sp\nbl run\nudf #0\n.cfi_endproc\n.size _start, .-_start\n"
	/* The return address minus one belongs to the preceding instruction. */
	".type trampoline, %function\ntrampoline:\nnop\nrestore:\nmov x8, #139\nsvc #0\n"
	".size trampoline, .-trampoline\n"
	/* No unwind information, but a frame pointer. */
	".type bare, %function\nbare:\nstp x29, x30, [sp, #-16]!\nmov x29, sp\nbl leaf\n"
	"ldp x29, x30, [sp], #16\nret\n.size bare, .-bare\n"
	/* The same, with local variables. */
	".type bare_large, %function\nbare_large:\nstp x29, x30, [sp, #-96]!\nmov x29, sp\nbl leaf\n"
	"ldp x29, x30, [sp], #96\nret\n.size bare_large, .-bare_large\n"
	/* It saves the frame pointer register and uses it for something else. */
	".type middle, %function\nmiddle:\n.cfi_startproc\n"
	"stp x30, x29, [sp, #-32]!\n.cfi_def_cfa_offset 32\n.cfi_offset 30, -32\n.cfi_offset 29, -24\n"
	"mov x29, #77\nbl leaf\n"
	"ldp x30, x29, [sp], #32\n.cfi_restore 29\n.cfi_restore 30\n.cfi_def_cfa_offset 0\n"
	"ret\n.cfi_endproc\n.size middle, .-middle\n");
#else
#define STOP() __asm__ volatile("ud2" ::: "memory")
#define TRAP() __asm__ volatile("int3" ::: "memory")
enum { WRITE = 1, KILL = 62, ACTION = 13, ALTSTACK = 131, GETPID = 39, EXIT = 231 };
enum { IP = 5 + 16, SP = 5 + 15, FP = 5 + 10, LR = 0, BX = 5 + 11 };

static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

__asm__(".globl _start\n.type _start, @function\n_start:\n"
	".cfi_startproc\n.cfi_undefined rip\n"
	"mov %rsp, %rdi\nand $-16, %rsp\ncall run\nud2\n.cfi_endproc\n.size _start, .-_start\n"
	".type trampoline, @function\ntrampoline:\nnop\nrestore:\nmov $15, %rax\nsyscall\n"
	".size trampoline, .-trampoline\n"
	".type bare, @function\nbare:\npush %rbp\nmov %rsp, %rbp\ncall leaf\n"
	"pop %rbp\nret\n.size bare, .-bare\n"
	".type bare_large, @function\nbare_large:\npush %rbp\nmov %rsp, %rbp\nsub $80, %rsp\ncall leaf\n"
	"leave\nret\n.size bare_large, .-bare_large\n"
	".type middle, @function\nmiddle:\n.cfi_startproc\n"
	"push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset rbp, -16\n"
	"mov $77, %rbp\ncall leaf\n"
	"pop %rbp\n.cfi_restore rbp\n.cfi_def_cfa_offset 8\n"
	"ret\n.cfi_endproc\n.size middle, .-middle\n");
#endif

extern const char restore[];
extern const char __ehdr_start[];
void bare(void);
void bare_large(void);
void middle(void);

/* ---- Output. ---- */

#define ALTERNATE 65536
static char alternate[ALTERNATE] __attribute__((aligned(16)));
/* The end of the stack, and the start of the part to print if the signal handler uses another stack. */
static word stack_end, stack_low;
static const char *name, *truth;

static void text(const char *s)
{
	word n = 0;

	while (s[n])
		n++;
	call(WRITE, 1, (long)s, n, 0);
}

static void hex(const char *before, word value)
{
	char digits[17];
	int at = 16;

	digits[at] = 0;
	do {
		digits[--at] = "0123456789abcdef"[value & 15];
		value >>= 4;
	} while (value);
	text(before);
	text(digits + at);
}

static void region(word from, word to)
{
	from &= ~7ul;
	hex("stack ", from);
	hex(" ", to);
	text("\n");
	for (; from < to; from += 8) {
		if (*(word *)from) {
			hex("", from);
			hex(" ", *(word *)from);
			text("\n");
		}
	}
}

static void print(const word *context, int in_syscall)
{
	word sp = context[SP], low = sp;
	word end = (word)alternate + ALTERNATE;

	text("case ");
	text(name);
	text("\ntruth ");
	text(truth);
	text(" run _start\n");
	hex("base ", (word)__ehdr_start);
	hex("\nip ", context[IP]);
	hex("\nsp ", sp);
	hex("\nfp ", context[FP]);
	hex("\nlr ", LR ? context[LR] : 0);
	hex("\nbx ", BX ? context[BX] : 0);
	hex("\nin_syscall ", in_syscall);
	text("\n");
	if (sp >= (word)alternate && sp < end) {
		region(sp, end);
		low = stack_low;
	}
	region(low, stack_end);
	call(EXIT, 0, 0, 0, 0);
}

static void stopped(int signal, void *info, word *context)
{
	(void)signal, (void)info;
	print(context, 0);
}

static void in_syscall(int signal, void *info, word *context)
{
	(void)signal, (void)info;
	print(context, 1);
}

/* ---- The cases. ---- */

NOINLINE void leaf(void) { STOP(); }
NOINLINE void leaf_case(void) { leaf(); STAY(); }

/* The return address is saved only after the instruction that stops. */
NOINLINE int late(int n)
{
	if (__builtin_expect(n, 1)) {
		STOP();
		return 1;
	}
	leaf_case();
	leaf_case();
	return 2;
}
NOINLINE void late_case(void) { late(1); STAY(); }

NOINLINE void huge_frame(void)
{
	volatile char frame[100000];

	frame[sizeof(frame) - 1] = 1;
	leaf();
	frame[0] = frame[sizeof(frame) - 1];
}
NOINLINE void huge_case(void) { huge_frame(); STAY(); }

NOINLINE void alloca_frame(int n)
{
	volatile char *more = __builtin_alloca(n);

	more[0] = 1;
	leaf();
	more[n - 1] = more[0];
}
NOINLINE void alloca_case(int n) { alloca_frame(n); STAY(); }

NOINLINE void realigned(int n)
{
	_Alignas(64) volatile char aligned[256];
	volatile char *more = __builtin_alloca(n);

	aligned[0] = more[0] = 1;
	leaf();
	aligned[1] = more[n - 1];
	more[0] = aligned[0];
}
NOINLINE void realigned_case(int n) { realigned(n); STAY(); }

/* Its CFA depends on the frame pointer register, which its callee has saved. */
NOINLINE void saved_fp(int n)
{
	volatile char *more = __builtin_alloca(n);

	more[0] = 1;
	middle();
	more[n - 1] = more[0];
}
NOINLINE void saved_fp_case(int n) { saved_fp(n); STAY(); }

NOINLINE void recursion(int n)
{
	if (n == 0)
		leaf();
	else
		recursion(n - 1);
	STAY();
}
NOINLINE void recursion_case(void) { recursion(19); STAY(); }
NOINLINE void deep_case(void) { recursion(149); STAY(); }

NOINLINE void tail_two(void) { leaf(); }
NOINLINE void tail_one(void) { tail_two(); }
NOINLINE void tail_case(void) { tail_one(); STAY(); }

NOINLINE void assisted_case(void) { bare(); STAY(); }

/* Its callers keep frame pointers, too, and have local variables. */
__attribute__((optimize("no-omit-frame-pointer"))) NOINLINE void framed(int n)
{
	volatile char frame[200];

	frame[n] = 1;
	bare_large();
	frame[0] = frame[n];
}
__attribute__((optimize("no-omit-frame-pointer"))) NOINLINE void framed_case(int n) { framed(n); STAY(); }

enum { USR1 = 10, USR2 = 12, ILL = 4, TRAPPED = 5 };
#define SIGINFO 0x4ul
#define RESTORER 0x04000000ul
#define ONSTACK 0x08000000ul

static void on(int signal, void *handler, word flags)
{
	word action[] = { (word)handler, SIGINFO | RESTORER | flags, (word)restore, 0 };

	call(ACTION, signal, (long)action, 0, 8);
}

NOINLINE void handler(int signal)
{
	(void)signal;
	leaf();
	STAY();
}
NOINLINE void raising(int signal) { call(KILL, call(GETPID, 0, 0, 0, 0), signal, 0, 0); }
NOINLINE void signal_case(void) { raising(USR1); STAY(); }

/* The interrupted function has no frame. */
NOINLINE void trapped(void) { TRAP(); STAY(); }
NOINLINE void trapped_case(void) { trapped(); STAY(); }
NOINLINE void altstack_case(void) { trapped(); STAY(); }

/* The interrupted function's CFA depends on the frame pointer register. */
NOINLINE void trapped_alloca(int n)
{
	volatile char *more = __builtin_alloca(n);

	more[0] = 1;
	TRAP();
	more[n - 1] = more[0];
}
NOINLINE void trapped_alloca_case(int n) { trapped_alloca(n); STAY(); }

/* The system call is its last instruction: the next instruction belongs to another function. */
__attribute__((noreturn)) NOINLINE void last(int pid)
{
	call(KILL, pid, USR2, 0, 0);
	__builtin_unreachable();
}
NOINLINE void syscall_case(void) { last(call(GETPID, 0, 0, 0, 0)); }

/* ---- */

static int is(const char *wanted)
{
	const char *s = name;

	for (; *s && *s == *wanted; s++)
		wanted++;
	return *s == *wanted;
}

#define RECURSION(n) RECURSION_##n
#define RECURSION_10 \
	"recursion recursion recursion recursion recursion " \
	"recursion recursion recursion recursion recursion "
#define RECURSION_50 RECURSION_10 RECURSION_10 RECURSION_10 RECURSION_10 RECURSION_10

#define CASE(which, call, chain) \
	if (is(#which)) { \
		truth = chain " " #which "_case"; \
		call; \
	}

__attribute__((used)) NOINLINE void run(word *stack)
{
	int n = stack[0];
	word other[3] = { 0, 0, ALTERNATE };

	other[0] = (word)alternate; /* (not above: the compiler would have it relocated) */
	stack_end = (word)stack + 16;
	stack_low = (word)stack - 4096;
	name = (const char *)stack[2];
	call(ALTSTACK, (long)other, 0, 0, 0);
	on(ILL, stopped, ONSTACK);
	on(USR2, in_syscall, ONSTACK);
	on(USR1, handler, 0);
	on(TRAPPED, handler, is("altstack") ? ONSTACK : 0);
	CASE(leaf, leaf_case(), "leaf")
	CASE(late, late_case(), "late")
	CASE(huge, huge_case(), "leaf huge_frame")
	CASE(alloca, alloca_case(n * 100), "leaf alloca_frame")
	CASE(realigned, realigned_case(n * 100), "leaf realigned")
	CASE(saved_fp, saved_fp_case(n * 100), "leaf middle saved_fp")
	CASE(recursion, recursion_case(), "leaf " RECURSION(10) RECURSION(10))
	CASE(deep, deep_case(), "leaf " RECURSION(50) RECURSION(50) RECURSION(50))
	CASE(tail, tail_case(), "leaf")
	CASE(assisted, assisted_case(), "leaf bare")
	CASE(framed, framed_case(n), "leaf bare_large framed")
	CASE(signal, signal_case(), "leaf handler trampoline raising")
	CASE(trapped, trapped_case(), "leaf handler trampoline trapped")
	CASE(altstack, altstack_case(), "leaf handler trampoline trapped")
	CASE(trapped_alloca, trapped_alloca_case(n * 100), "leaf handler trampoline trapped_alloca")
	CASE(syscall, syscall_case(), "last")
	call(EXIT, 9, 0, 0, 0);
	__builtin_unreachable();
}
