/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef GPUMEMPROF_STDBOOL_H
#define GPUMEMPROF_STDBOOL_H
#define true 1
#define false 0
#endif
