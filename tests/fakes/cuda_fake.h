/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program written against the stand-ins includes: the CUDA calls (the same source also
 * links with the genuine libraries) and the few calls of the stand-ins' own.
 */
#ifndef CUDA_FAKE_H
#define CUDA_FAKE_H

#include "driver_calls.h"
#include "runtime_calls.h"

/* Truth, as JSON: see state.h. Returns the length needed, as snprintf does. */
size_t fake_stats_json(char *buffer, size_t size);

/*
 * Calls hook(name) at the entry of every call, on the calling thread and with no lock held: it may
 * look, sleep, or leave by longjmp. NULL: none.
 */
void fake_set_hook(void (*hook)(const char *call));

#endif
