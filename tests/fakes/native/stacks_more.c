/* More kinds of stacks, as stacks.c: one for each name; each ends in capture_point. */
#include "capture.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <ucontext.h>

static volatile int sink;

FRAME static int leaf(int n)
{
	volatile char buffer[24];

	buffer[n & 15] = n;
	capture_point();
	return buffer[n & 15] + sink;
}

static int compare(const void *a, const void *b)
{
	static int once;

	if (!once++)
		sink += leaf(3);
	return *(const int *)a - *(const int *)b;
}

FRAME static void searched(void)
{
	int values[5] = {1, 2, 3, 4, 5}, key = 4;

	sink += *(int *)bsearch(&key, values, 5, sizeof(int), compare);
}

/* The call is a function's last instruction: its return address is in the next function. */

__attribute__((noreturn)) FRAME static void last_call(int n)
{
	leaf(n);
	exit(0);
}

__attribute__((noreturn)) FRAME static void calls_last(int n)
{
	volatile char buffer[100];

	buffer[n] = 1;
	last_call(buffer[n]);
}

/* Parts that compilers put elsewhere, as NAME.cold. */

__attribute__((cold)) FRAME static int unlikely_part(int n)
{
	return leaf(n) + 1;
}

FRAME static int with_cold_part(int n)
{
	if (__builtin_expect(n > 2, 0)) {
		sink += unlikely_part(n);
		sink += unlikely_part(n + 1) * n;
		KEEP();
	}
	return sink + n;
}

/* Jumps instead of calls: no frame is left of `jumps`. */

__attribute__((noinline)) static int jumps(int n)
{
	return leaf(n + 1);
}

FRAME static int before_jump(int n)
{
	return jumps(n) * 3 + sink;
}

FRAME static int many_arguments(int n, ...)
{
	va_list list;
	int sum = 0;

	va_start(list, n);
	for (int i = 0; i < n; i++)
		sum += va_arg(list, int);
	va_end(list);
	return leaf(sum) + sink;
}

/* More than the kernel captures of a stack. */

FRAME static int large_frame(int n)
{
	volatile char buffer[40000];
	int r;

	for (int i = 0; i < 40000; i++)
		buffer[i] = n;
	r = leaf(buffer[n]);
	return r + buffer[n];
}

/* Most of its pages were never touched, and are no memory yet. */

FRAME static int untouched_pages(int n)
{
	volatile char buffer[24000];
	int r;

	buffer[n] = 1;
	r = leaf(buffer[n]);
	return r + buffer[n];
}

/* A handler struck while another runs. */

static void on_second(int number)
{
	sink += leaf(number);
}

static void on_first(int number)
{
	raise(SIGUSR2);
	sink += number;
}

FRAME static void struck_twice(void)
{
	struct sigaction first = {.sa_handler = on_first}, second = {.sa_handler = on_second};

	sigaction(SIGUSR1, &first, NULL);
	sigaction(SIGUSR2, &second, NULL);
	raise(SIGUSR1);
	KEEP();
}

/* Struck at an instruction that traps, not at a call. */

static void on_trap(int number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;

	(void)info;
	sink += leaf(number);
	c->uc_mcontext.gregs[REG_RIP] += 2; /* ud2 */
}

FRAME static void trapped(int n)
{
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

	sigaction(SIGILL, &action, NULL);
	__asm__ volatile("ud2" ::: "memory");
	sink += n;
}

/* Single steps into the vDSO. */

static volatile int stepping;

static void on_step(int number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;
	unsigned long pc = c->uc_mcontext.gregs[REG_RIP], vdso = getauxval(AT_SYSINFO_EHDR);

	(void)info;
	if (pc - vdso < 8192 && ++stepping == 12) {
		sink += leaf(number);
		c->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
	}
}

FRAME static void in_vdso(void)
{
	struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now); /* bound already */
	sigaction(SIGTRAP, &action, NULL);
	__asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
	clock_gettime(CLOCK_MONOTONIC, &now);
	sink += now.tv_nsec;
}

/* A coroutine: a stack of its own, which begins at makecontext. */

static ucontext_t outside, inside;

static void coroutine(int n)
{
	sink += leaf(n);
	swapcontext(&inside, &outside);
	sink += leaf(n + 1);
}

FRAME static void switched(void)
{
	static char space[65536];

	getcontext(&inside);
	inside.uc_stack.ss_sp = space;
	inside.uc_stack.ss_size = sizeof(space);
	inside.uc_link = &outside;
	makecontext(&inside, (void (*)(void))coroutine, 1, 3);
	swapcontext(&outside, &inside);
	sink += leaf(9);
	swapcontext(&outside, &inside);
	KEEP();
}

/* After a jump out of deeper frames. */

static jmp_buf back;

FRAME static int jumps_back(int n)
{
	if (n == 0)
		longjmp(back, 1);
	return jumps_back(n - 1) + 1;
}

FRAME static void jumped(void)
{
	if (!setjmp(back))
		sink += jumps_back(4);
	else
		sink += leaf(2);
	KEEP();
}

static void at_exit(void)
{
	sink += leaf(1);
}

static void end_of_thread(void *value)
{
	sink += leaf(*(int *)value);
}

static pthread_key_t key;

static void *thread(void *argument)
{
	static int value = 3;

	pthread_setspecific(key, &value);
	return argument;
}

FRAME static void thread_destructor(void)
{
	pthread_t other;

	pthread_key_create(&key, end_of_thread);
	pthread_create(&other, NULL, thread, NULL);
	pthread_join(other, NULL);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void first_time(void)
{
	sink += leaf(4);
}

static pthread_barrier_t all;

static void *one_of_many(void *argument)
{
	pthread_barrier_wait(&all);
	sink += before_jump((int)(long)argument);
	return NULL;
}

FRAME static void many_threads(void)
{
	pthread_t threads[8];

	pthread_barrier_init(&all, NULL, 8);
	for (long i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, one_of_many, (void *)i);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";

	if (!strcmp(kind, "bsearch"))
		searched();
	else if (!strcmp(kind, "last call"))
		calls_last(2);
	else if (!strcmp(kind, "cold part"))
		sink += with_cold_part(argc + 3);
	else if (!strcmp(kind, "jump"))
		sink += before_jump(1);
	else if (!strcmp(kind, "arguments on the stack"))
		sink += many_arguments(9, 1, 2, 3, 4, 5, 6, 7, 8, 9) * 2;
	else if (!strcmp(kind, "frame of 40 kB"))
		sink += large_frame(3);
	else if (!strcmp(kind, "frame of 24 kB, hardly touched"))
		sink += untouched_pages(3);
	else if (!strcmp(kind, "signal in a signal"))
		struck_twice();
	else if (!strcmp(kind, "trap"))
		trapped(1);
	else if (!strcmp(kind, "vDSO"))
		in_vdso();
	else if (!strcmp(kind, "coroutine"))
		switched();
	else if (!strcmp(kind, "after longjmp"))
		jumped();
	else if (!strcmp(kind, "exit handler"))
		atexit(at_exit);
	else if (!strcmp(kind, "end of a thread"))
		thread_destructor();
	else if (!strcmp(kind, "pthread_once"))
		pthread_once(&once, first_time);
	else if (!strcmp(kind, "8 threads"))
		many_threads();
	else
		return 2;
	return 0;
}
