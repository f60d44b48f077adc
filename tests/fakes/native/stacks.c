/* One kind of stack for each name given as first argument; each ends in capture_point. */
#include "capture.h"

#include <alloca.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile int sink, stepping;
static const char *argument;

FRAME static int leaf(int n)
{
	char buffer[40];

	memset(buffer, n, sizeof(buffer));
	if (!stepping)
		capture_point();
	return buffer[n & 31] + sink;
}

FRAME static int branch(int n)
{
	int sum = 0;

	for (int i = 0; i < 1; i++)
		sum += leaf(n + i) * n;
	KEEP();
	return sum;
}

FRAME static int chain(int n)
{
	int r = branch(n) + branch(0) * 0;

	return r * 3 + sink;
}

FRAME static int variable(int n)
{
	char *block = alloca(n * 13 + 5);

	memset(block, 1, n);
	sink += branch(n) + block[1];
	KEEP();
	return sink;
}

typedef double wide __attribute__((vector_size(64)));

FRAME static int aligned(int n, volatile wide *out)
{
	volatile wide value = {n, n};
	int r = variable(n);

	*out = value;
	return r;
}

FRAME static int aligned_and_variable(int n)
{
	volatile wide value = {n, n};
	char *block = alloca(n * 16);
	volatile wide out;

	block[0] = 1;
	sink += aligned(n, &out) + block[0] + (int)value[0];
	return sink;
}

FRAME static int recurse(int depth)
{
	int r;

	if (depth == 0)
		return chain(3) + 1;
	r = recurse(depth - 1) * 2;
	KEEP();
	return r + sink;
}

static int compare(const void *a, const void *b)
{
	static int once;

	if (!once++)
		chain(2);
	return *(const int *)a - *(const int *)b;
}

FRAME static void through_libc(void)
{
	int values[5] = {3, 2, 1, 5, 4};

	qsort(values, 5, sizeof(int), compare);
	sink += values[0];
}

static void on_signal(int number)
{
	sink += chain(number);
}

FRAME static void struck(int flags)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};

	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	KEEP();
}

FRAME static void on_other_stack(void)
{
	static char space[65536];
	stack_t stack = {.ss_sp = space, .ss_size = sizeof(space)};

	sigaltstack(&stack, NULL);
	capture_top = (unsigned long)space + sizeof(space);
	struck(SA_ONSTACK);
}

int asm_frames(int (*callee)(int), int n);
int asm_without_cfi(int (*callee)(int), int n);

FRAME static void made_at_run_time(void)
{
	/* sub $8,%rsp; mov $capture_point,%rax; call *%rax; add $8,%rsp; ret */
	unsigned char code[] = {0x48, 0x83, 0xec, 8, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0,
				0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
	uintptr_t target = (uintptr_t)capture_point;
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memcpy(code + 6, &target, sizeof(target));
	memcpy(page, code, sizeof(code));
	if (argument) {
		char path[64];
		FILE *map;

		snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
		map = fopen(path, "w");
		fprintf(map, "%lx %zx stale_name\n", (unsigned long)page, sizeof(code));
		fprintf(map, "%lx %zx JS:~hot_loop file.js:12\n", (unsigned long)page, sizeof(code));
		fclose(map);
	}
	((void (*)(void))page)();
	KEEP();
}

FRAME static int in_library(void)
{
	void *library = dlopen(argument, RTLD_NOW);
	int (*call)(int (*)(int), int);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(3);
	}
	call = (int (*)(int (*)(int), int))dlsym(library, "library_calls");
	return call(chain, 3) + sink;
}

/* Single steps: a stack is captured before every instruction of what is called below. */

static void on_step(int number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;

	if (stepping) {
		capture_point();
		KEEP();
	} else {
		c->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
	}
}

FRAME static int many_shapes(int n)
{
	volatile wide out;
	struct timespec now;
	jmp_buf here;
	int r = 0;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (!setjmp(here))
		r += aligned(n, &out);
	r += asm_frames(variable, n);
	r += strtol("42", NULL, 10) + abs((int)now.tv_sec) % 2;
	return r;
}

FRAME static void stepped(int n)
{
	struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};

	sigaction(SIGTRAP, &action, NULL);
	stepping = 1;
	__asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
	sink += many_shapes(n);
	stepping = 0;
	KEEP();
}

static void run(const char *kind);

static void *thread(void *kind)
{
	capture_this_stack();
	run(kind);
	return NULL;
}

static void run(const char *kind)
{
	if (!strcmp(kind, "chain"))
		sink += chain(2);
	else if (!strcmp(kind, "variable"))
		sink += variable(2);
	else if (!strcmp(kind, "aligned"))
		sink += aligned_and_variable(2);
	else if (!strcmp(kind, "recursion"))
		sink += recurse(250);
	else if (!strcmp(kind, "deep"))
		sink += recurse(5000);
	else if (!strcmp(kind, "libc"))
		through_libc();
	else if (!strcmp(kind, "signal"))
		struck(0);
	else if (!strcmp(kind, "altstack"))
		on_other_stack();
	else if (!strcmp(kind, "asm"))
		sink += asm_frames(chain, 1);
	else if (!strcmp(kind, "asm_without_cfi"))
		sink += asm_without_cfi(chain, 1);
	else if (!strcmp(kind, "jit"))
		made_at_run_time();
	else if (!strcmp(kind, "library"))
		sink += in_library();
	else if (!strcmp(kind, "repeat")) {
		for (int i = 0; i < 3; i++)
			sink += variable(2);
		sink += variable(7);
	} else if (!strcmp(kind, "step"))
		stepped(2);
	else
		exit(2);
}

int main(int argc, char **argv)
{
	const char *kind = argv[1];

	argument = argc > 2 ? argv[2] : NULL;
	capture_this_stack();
	if (!strcmp(kind, "step")) {
		capture_go = -1;
		capture_size = 16384;
	}
	if (!strncmp(kind, "thread:", 7)) {
		pthread_t other;

		pthread_create(&other, NULL, thread, (void *)(kind + 7));
		pthread_join(other, NULL);
	} else {
		run(kind);
	}
	return 0;
}
