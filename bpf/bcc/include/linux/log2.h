/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* bcc includes it, and needs nothing of it here: see README.md */
