/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates and frees in a loop and tells how long a pair took, as one line of JSON: a load for
 * tests and benchmarks. Built twice: driver_loop is linked with libcudart, driver_loop_dlopen
 * loads --runtime itself, after --late seconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <getopt.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_fake.h"
#include "state.h"

enum pattern { PAIR, STACK, WINDOW };

static struct {
	long threads, pairs, batch, window, leak, depth, forks, longjmps, device;
	long cpu;		/* -1: not pinned */
	size_t size;
	double rate;		/* pairs per second and thread; 0: no limit */
	double late, hold;
	enum pattern pattern;
	bool exec, wait;
	const char *runtime, *call;
} options = { .threads = 1, .pairs = 1000, .batch = 100, .window = 16, .cpu = -1,
	      .size = 2 << 20, .runtime = "libcudart.so.12", .call = "cudaMalloc" };

static struct {
	__typeof__(cudaSetDevice) *set_device;
	__typeof__(cudaMalloc) *malloc;
	__typeof__(cudaMallocAsync) *malloc_async;
	__typeof__(cudaMallocManaged) *malloc_managed;
	__typeof__(cudaHostAlloc) *host_alloc;
	__typeof__(cudaFree) *free;
	__typeof__(cudaFreeAsync) *free_async;
	__typeof__(cudaFreeHost) *free_host;
} cuda;

struct worker {
	pthread_t thread;
	long number, failed, leaked, batches;
	double *ns;		/* per pair, of each batch */
};

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void pause_seconds(double seconds)
{
	struct timespec t = { (time_t)seconds, (seconds - (time_t)seconds) * 1e9 };
	while (nanosleep(&t, &t))
		;
}

__attribute__((noinline)) static void *allocate_block(void)
{
	void *block = NULL;
	int error;

	if (!strcmp(options.call, "cudaMallocAsync"))
		error = cuda.malloc_async(&block, options.size, NULL);
	else if (!strcmp(options.call, "cudaMallocManaged"))
		error = cuda.malloc_managed(&block, options.size, 1);
	else if (!strcmp(options.call, "cudaHostAlloc"))
		error = cuda.host_alloc(&block, options.size, 0);
	else
		error = cuda.malloc(&block, options.size);
	return error ? NULL : block;
}

__attribute__((noinline)) static int free_block(void *block)
{
	if (!strcmp(options.call, "cudaMallocAsync"))
		return cuda.free_async(block, NULL);
	if (!strcmp(options.call, "cudaHostAlloc"))
		return cuda.free_host(block);
	return cuda.free(block);
}

/* So many frames lie between the thread's start and the call. */
__attribute__((noinline)) static void *descend(long depth)
{
	void *block = depth > 0 ? descend(depth - 1) : allocate_block();
	__asm__ volatile("" : "+r"(block));	/* not a tail call */
	return block;
}

__attribute__((noinline)) static void leak_blocks(struct worker *worker)
{
	for (long i = 0; i < options.leak; i++)
		worker->leaked += descend(options.depth) != NULL;
}

static void release(struct worker *worker, void *block)
{
	if (!block || free_block(block))
		worker->failed++;
}

/* `count` pairs in the chosen order; `live` has room for options.window blocks. */
__attribute__((noinline)) static void run_batch(struct worker *worker, long count, void **live)
{
	long at = 0;

	for (long i = 0; i < count; i++) {
		if (options.pattern == PAIR) {
			release(worker, descend(options.depth));
			continue;
		}
		live[at++] = descend(options.depth);
		if (at < options.window && i + 1 < count)
			continue;
		for (long j = 0; j < at; j++)	/* last first, or oldest first */
			release(worker, live[options.pattern == STACK ? at - 1 - j : j]);
		at = 0;
	}
}

static void *worker_main(void *arg)
{
	struct worker *worker = arg;
	void **live = calloc(options.window, sizeof(*live));
	double start, due = now_ns();
	long left = options.pairs;

	if (options.cpu >= 0) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(options.cpu + worker->number, &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
	cuda.set_device(options.device);
	while (left > 0) {
		long count = left < options.batch ? left : options.batch;
		start = now_ns();
		run_batch(worker, count, live);
		worker->ns[worker->batches++] = (now_ns() - start) / count;
		left -= count;
		if (options.rate > 0) {
			due += count / options.rate * 1e9;
			if (due > now_ns())
				pause_seconds((due - now_ns()) / 1e9);
		}
	}
	leak_blocks(worker);
	free(live);
	return NULL;
}

static jmp_buf out;

static void leave(const char *call)
{
	if (!strcmp(call, options.call))
		longjmp(out, 1);
}

static void set_hook(void (*hook)(const char *call))
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(fake_set_hook) *set = NULL;

	if (driver)
		set = (__typeof__(fake_set_hook) *)dlsym(driver, "fake_set_hook");
	if (!set) {
		fprintf(stderr, "driver_loop: --longjmp needs the stand-in driver\n");
		exit(2);
	}
	set(hook);
}

/* Enters the call and never returns from it, as a signal handler or a foreign exception may do. */
__attribute__((noinline)) static void leave_by_longjmp(void)
{
	volatile long left = options.longjmps;

	if (!left)
		return;
	set_hook(leave);
	while (left > 0) {
		left--;
		if (!setjmp(out))
			descend(options.depth);
	}
	set_hook(NULL);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void run(void)
{
	struct worker *workers = calloc(options.threads, sizeof(*workers));
	long most = options.pairs / options.batch + 1, failed = 0, leaked = 0, batches = 0;
	double *all = calloc(options.threads * most, sizeof(*all)), start;

	leave_by_longjmp();
	start = now_ns();
	for (long i = 0; i < options.threads; i++) {
		workers[i].number = i;
		workers[i].ns = calloc(most, sizeof(*all));
		pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
	}
	for (long i = 0; i < options.threads; i++) {
		pthread_join(workers[i].thread, NULL);
		memcpy(all + batches, workers[i].ns, workers[i].batches * sizeof(*all));
		batches += workers[i].batches;
		failed += workers[i].failed;
		leaked += workers[i].leaked;
	}
	qsort(all, batches, sizeof(*all), ascending);
	printf("{\"pid\":%d,\"call\":\"%s\",\"threads\":%ld,\"pairs\":%ld,\"failed\":%ld,"
	       "\"leaked_count\":%ld,\"leaked_bytes\":%zu,\"seconds\":%.6f,"
	       "\"ns_per_pair\":{\"min\":%.1f,\"median\":%.1f}}\n",
	       getpid(), options.call, options.threads, options.threads * options.pairs, failed,
	       leaked, leaked * options.size, (now_ns() - start) / 1e9, batches ? all[0] : 0.0,
	       batches ? all[batches / 2] : 0.0);
	fflush(stdout);
}

static void load_runtime(void)
{
#ifdef LINKED
	cuda.set_device = cudaSetDevice;
	cuda.malloc = cudaMalloc;
	cuda.malloc_async = cudaMallocAsync;
	cuda.malloc_managed = cudaMallocManaged;
	cuda.host_alloc = cudaHostAlloc;
	cuda.free = cudaFree;
	cuda.free_async = cudaFreeAsync;
	cuda.free_host = cudaFreeHost;
#else
	void *library = dlopen(options.runtime, RTLD_NOW);
	if (!library) {
		fprintf(stderr, "driver_loop: %s\n", dlerror());
		exit(2);
	}
	*(void **)&cuda.set_device = dlsym(library, "cudaSetDevice");
	*(void **)&cuda.malloc = dlsym(library, "cudaMalloc");
	*(void **)&cuda.malloc_async = dlsym(library, "cudaMallocAsync");
	*(void **)&cuda.malloc_managed = dlsym(library, "cudaMallocManaged");
	*(void **)&cuda.host_alloc = dlsym(library, "cudaHostAlloc");
	*(void **)&cuda.free = dlsym(library, "cudaFree");
	*(void **)&cuda.free_async = dlsym(library, "cudaFreeAsync");
	*(void **)&cuda.free_host = dlsym(library, "cudaFreeHost");
#endif
}

static const struct option names[] = {
	{ "threads", 1, NULL, 't' },  { "pairs", 1, NULL, 'n' },    { "batch", 1, NULL, 'b' },
	{ "window", 1, NULL, 'w' },   { "leak", 1, NULL, 'l' },	    { "depth", 1, NULL, 'd' },
	{ "fork", 1, NULL, 'f' },     { "longjmp", 1, NULL, 'j' },  { "cpu", 1, NULL, 'c' },
	{ "size", 1, NULL, 's' },     { "rate", 1, NULL, 'r' },	    { "late", 1, NULL, 'L' },
	{ "hold", 1, NULL, 'h' },     { "pattern", 1, NULL, 'p' },  { "exec", 0, NULL, 'e' },
	{ "wait", 0, NULL, 'W' },     { "runtime", 1, NULL, 'R' },  { "call", 1, NULL, 'C' },
	{ "device", 1, NULL, 'D' },   { NULL, 0, NULL, 0 },
};

static void read_options(int argc, char **argv)
{
	int option;

	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		long number = optarg ? strtol(optarg, NULL, 0) : 0;
		switch (option) {
		case 't': options.threads = number; break;
		case 'n': options.pairs = number; break;
		case 'b': options.batch = number; break;
		case 'w': options.window = number; break;
		case 'l': options.leak = number; break;
		case 'd': options.depth = number; break;
		case 'f': options.forks = number; break;
		case 'j': options.longjmps = number; break;
		case 'c': options.cpu = number; break;
		case 's': options.size = number; break;
		case 'D': options.device = number; break;
		case 'r': options.rate = atof(optarg); break;
		case 'L': options.late = atof(optarg); break;
		case 'h': options.hold = atof(optarg); break;
		case 'p':
			options.pattern = !strcmp(optarg, "stack")    ? STACK
					  : !strcmp(optarg, "window") ? WINDOW
								      : PAIR;
			break;
		case 'e': options.exec = true; break;
		case 'W': options.wait = true; break;
		case 'R': options.runtime = optarg; break;
		case 'C': options.call = optarg; break;
		default:
			fprintf(stderr, "usage: driver_loop [--threads N] [--pairs N] ... (see the "
					"table of options in driver_loop.c)\n");
			exit(2);
		}
	}
	if (options.threads < 1 || options.batch < 1 || options.window < 1) {
		fprintf(stderr, "driver_loop: threads, batch and window are at least 1\n");
		exit(2);
	}
}

/* Runs this program again in the same process, without --exec. */
static void exec_again(char **argv)
{
	char **kept = argv;

	for (char **one = argv; *one; one++)
		if (strcmp(*one, "--exec"))
			*kept++ = *one;
	*kept = NULL;
	execv("/proc/self/exe", argv);
	perror("execv");
	exit(2);
}

int main(int argc, char **argv)
{
	read_options(argc, argv);
	if (options.wait) {	/* tells that it started; goes on when it is told to */
		printf("ready\n");
		fflush(stdout);
		if (getchar() == EOF)
			return 2;
	}
	for (long i = 0; i < options.forks; i++)
		if (!fork()) {
			options.forks = 0;
			break;
		}
	pause_seconds(options.late);
	load_runtime();
	run();
	pause_seconds(options.hold);
	if (options.exec)
		exec_again(argv);
	while (wait(NULL) > 0)
		;
	return 0;
}
