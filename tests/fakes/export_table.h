/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stand-in runtime gets from the stand-in driver out of sight, through cuGetExportTable,
 * as the genuine runtime does with tables of its own.
 */
#ifndef EXPORT_TABLE_H
#define EXPORT_TABLE_H

#include "state.h"

#define EXPORT_TABLE_ID { "gpumemprof-fake" }

struct export_table {
	struct call_site *(*site_find)(const char *name);
	CUresult (*call_enter)(struct call_site *site);
	CUresult (*call_leave)(struct call_site *site, CUresult result);
	CUcontext (*primary_open)(CUdevice device);
	CUresult (*primary_reset)(CUdevice device);
	bool retain_late;
};

#endif
