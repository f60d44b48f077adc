/* capture_point (capture.h) that allocates: the programs of this directory, under the probes. */
#include "capture.h"

#include <stdlib.h>

unsigned long capture_size, capture_top;
int capture_fd, capture_go;

int cudaMalloc(void **address, size_t size);

void capture_point(void)
{
	static __thread size_t next = 4096;
	void *address;
	volatile int result = cudaMalloc(&address, next);

	if (result)
		exit(5);
	next += 4096;
}
