/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Asked by bcc's own headers; what is loaded does not depend on it. */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
