/*
 * Preloaded into a program on the stand-in libraries: every allocating call of the runtime stops
 * inside, tells "thread-id call" on descriptor STACKS_TELL and goes on when it has read a byte from
 * descriptor STACKS_GO. So a debugger can look at the very moment that the probes captured. It waits
 * once more at its end ("thread-id exit"), until its last stack was read.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fake_set_hook(void (*chosen)(const char *call));

static int tell, go;

static void wait_here(const char *where)
{
	char line[64], byte;
	int length = snprintf(line, sizeof(line), "%d %s\n", gettid(), where);

	if (write(tell, line, length) == length)
		while (read(go, &byte, 1) < 0)
			;
}

static void hold(const char *call)
{
	if (!strcmp(call, "cudaMalloc"))
		wait_here(call);
}

__attribute__((constructor)) static void begin(void)
{
	const char *tell_text = getenv("STACKS_TELL"), *go_text = getenv("STACKS_GO");

	if (!tell_text || !go_text)
		return;
	tell = atoi(tell_text);
	go = atoi(go_text);
	fake_set_hook(hold);
}

__attribute__((destructor)) static void end(void)
{
	if (tell)
		wait_here("exit");
}
