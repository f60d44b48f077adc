/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions, generated from driver_calls.h, and how they are looked up by name. */
#include <string.h>

#include "driver_calls.h"
#include "driver_calls_impl.h"
#include "export_table.h"

/* Each call: find its site once, enter, carry out, leave. Nothing is a tail call: it returns here. */
#define DEFINE(name, base, since, ptsz, params, args, impl)                                        \
	EXPORT CUresult name params                                                                \
	{                                                                                          \
		static struct call_site *site;                                                     \
		CUresult result;                                                                   \
		if (!site)                                                                         \
			site = site_find(#name);                                                   \
		result = call_enter(site);                                                         \
		if (result == CUDA_SUCCESS)                                                        \
			result = impl args;                                                        \
		return call_leave(site, result);                                                   \
	}
DRIVER_CALLS(DEFINE)
#undef DEFINE

struct entry {
	const char *base;
	void *function;
	int since;
	bool ptsz;
};

#define ENTRY(name, base, since, ptsz, params, args, impl) { base, (void *)name, since, ptsz },
static const struct entry entries[] = { DRIVER_CALLS(ENTRY) };
#undef ENTRY

#define PER_THREAD_STREAM 2
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

/* The newest variant that a program built for `version` knows; where there is none, status says. */
CUresult drv_get_proc_address(const char *symbol, void **address, int version, uint64_t flags,
			      int *status)
{
	const struct entry *best = NULL;
	bool known = false, want_ptsz = flags & PER_THREAD_STREAM;

	if (!symbol || !address)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		const struct entry *one = &entries[i];
		if (strcmp(one->base, symbol))
			continue;
		known = true;
		if (one->since > version || (one->ptsz && !want_ptsz))
			continue;
		if (!best || one->ptsz > best->ptsz ||
		    (one->ptsz == best->ptsz && one->since >= best->since))
			best = one;
	}
	*address = best ? best->function : NULL;
	if (status)
		*status = best ? FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
	return best || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult drv_export_table(const void **table, const CUuuid *id)
{
	static const CUuuid own = EXPORT_TABLE_ID;
	static struct export_table exported;

	if (!table || !id || memcmp(id, &own, sizeof(own)))
		return CUDA_ERROR_INVALID_VALUE;
	exported = (struct export_table){ site_find,	call_enter,	   call_leave,
					  primary_open, drv_primary_reset, settings.retain_late };
	*table = &exported;
	return CUDA_SUCCESS;
}
