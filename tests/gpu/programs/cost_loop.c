/* SPDX-License-Identifier: Apache-2.0 */
/* Times cudaMalloc + cudaFree of 2 MiB. Each line "BATCHES PAIRS" on stdin is answered by
 * READY {"ns":[nanoseconds per pair of each batch]}. Argument: the processor to stay on. */
#define _GNU_SOURCE
#include <sched.h>
#include <time.h>

#include "portable.h"

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

__attribute__((noinline)) static void pair(void)
{
	void *block;

	MUST(cudaMalloc(&block, 2 * MIB));
	MUST(cudaFree(block));
}

__attribute__((noinline)) static void measure(int batches, int pairs)
{
	fputs("READY {\"ns\":[", stdout);
	for (int i = 0; i < batches; i++) {
		double start = now_ns();

		for (int j = 0; j < pairs; j++)
			pair();
		printf("%s%.1f", i ? "," : "", (now_ns() - start) / pairs);
	}
	puts("]}");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[64];
	int batches, pairs;
	cpu_set_t set;

	if (argc > 1) {
		CPU_ZERO(&set);
		CPU_SET(atoi(argv[1]), &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
	MUST(cudaSetDevice(0));
	measure(1, 200);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%d %d", &batches, &pairs) != 2)
			return 0;
		measure(batches, pairs);
	}
	return 0;
}
