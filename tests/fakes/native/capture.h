/* See capture.S. */
#ifndef CAPTURE_H
#define CAPTURE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
void capture_point(void);
extern unsigned long capture_size, capture_top;
extern int capture_fd, capture_go;

/* The stack of the calling thread ends here. */
static inline void capture_this_stack(void)
{
	pthread_attr_t attr;
	void *low;
	size_t size;

	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstack(&attr, &low, &size);
	pthread_attr_destroy(&attr);
	capture_top = (unsigned long)low + size;
}
#ifdef __cplusplus
}
#endif

/* Keeps calls from being inlined, and from becoming jumps. */
#ifdef __clang__
#define FRAME __attribute__((noinline))
#else
#define FRAME __attribute__((noinline, noclone))
#endif
#define KEEP() __asm__ volatile("" ::: "memory")
#endif
