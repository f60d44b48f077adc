/* SPDX-License-Identifier: Apache-2.0 */
/* One process owns 64 MiB, another opens it: it belongs to the owner alone. */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "portable.h"

static int open_it(void)
{
	cudaIpcMemHandle_t handle;
	void *memory = NULL, *own = NULL;
	int error;
	char answer;

	if (read(3, &handle, sizeof(handle)) != sizeof(handle))
		return 4;
	MUST(cudaSetDevice(0));
	MUST(cudaMalloc(&own, 3 * MIB));
	error = (int)cudaIpcOpenMemHandle(&memory, handle, 1);
	if (write(4, &error, sizeof(error)) != sizeof(error) || read(3, &answer, 1) != 1)
		return 4;
	if (!error)
		MUST(cudaIpcCloseMemHandle(memory));
	if (write(4, &error, sizeof(error)) != sizeof(error) || read(3, &answer, 1) != 1)
		return 4;
	return 0;
}

int main(int argc, char **argv)
{
	int to[2], from[2], opened = -1, status = 0;
	cudaIpcMemHandle_t handle;
	void *memory;
	pid_t child;

	if (argc > 1)
		return open_it();
	if (pipe(to) || pipe(from))
		return 4;
	child = fork();
	if (!child) {
		int in = dup(to[0]), out = dup(from[1]);
		dup2(in, 3);
		dup2(out, 4);
		execl("/proc/self/exe", argv[0], "open", (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	MUST(cudaSetDevice(0));
	MUST(cudaMalloc(&memory, 64 * MIB));
	MUST(cudaIpcGetMemHandle(&handle, memory));
	if (write(to[1], &handle, sizeof(handle)) != sizeof(handle) ||
	    read(from[0], &opened, sizeof(opened)) != sizeof(opened))
		return 4;
	printf("READY {\"phase\":\"opened\",\"child\":%d,\"error\":%d,\"owner_bytes\":%zu,"
	       "\"child_bytes\":%zu}\n",
	       child, opened, 64 * MIB, 3 * MIB);
	wait_for_line();
	if (write(to[1], "x", 1) != 1 || read(from[0], &opened, sizeof(opened)) != sizeof(opened))
		return 4;
	printf("READY {\"phase\":\"closed\",\"child\":%d,\"error\":%d,\"owner_bytes\":%zu,"
	       "\"child_bytes\":%zu}\n",
	       child, opened, 64 * MIB, 3 * MIB);
	wait_for_line();
	if (write(to[1], "x", 1) != 1)
		return 4;
	waitpid(child, &status, 0);
	return status ? 5 : 0;
}
