/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA calls, from the genuine headers or (STAND_INS) from those of tests/fakes; and the
 * conversation with the harness: a line "READY {json}", then wait for a line on stdin. */
#ifndef PORTABLE_H
#define PORTABLE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef STAND_INS
#include "cuda_fake.h"
typedef CUarray cudaArray_t;
typedef CUmipmappedArray cudaMipmappedArray_t;
typedef CUipcMemHandle cudaIpcMemHandle_t;
typedef cudaPitchedPtr pitched_t;
typedef cudaExtent extent_t;
typedef cudaChannelFormatDesc channels_t;
#else
#include <cuda.h>
#include <cuda_runtime_api.h>
typedef struct cudaPitchedPtr pitched_t;
typedef struct cudaExtent extent_t;
typedef struct cudaChannelFormatDesc channels_t;
#endif

#define MIB ((size_t)1 << 20)

/* A call that has to work: ends the program with the line and the error otherwise. */
#define MUST(call)                                                                                 \
	do {                                                                                       \
		int must_error = (int)(call);                                                      \
		if (must_error) {                                                                  \
			fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call,        \
				must_error);                                                       \
			exit(3);                                                                   \
		}                                                                                  \
	} while (0)

static inline void wait_for_line(void)
{
	char line[64];
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(0); /* the harness is gone */
}

#endif
