/* SPDX-License-Identifier: Apache-2.0 */
/* Settings, entering and leaving a call: see state.h. */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SITE_BUCKETS 512
#define MAX_RULES 32

struct settings settings;
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
bool forked_after_init, initialized;

struct rule {
	char call[64];
	unsigned long first, last;	/* which entries */
	double seconds;
	int error;
};

static struct rule fail_rules[MAX_RULES], sleep_rules[MAX_RULES];
static int fail_count, sleep_count;
static struct call_site *sites[SITE_BUCKETS];
static __thread int depth;
static __thread uintptr_t frames[8];	/* where the calls that are open stand on the stack */
static void (*hook)(const char *call);

static uint64_t bytes_setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void parse_which(const char *text, struct rule *rule)
{
	char *end;
	rule->first = 1;
	rule->last = ~0ul;
	if (!text || *text == '*')
		return;
	rule->first = strtoul(text, &end, 10);
	rule->last = *end == '+' ? ~0ul : rule->first;
}

/* name:second:third, separated by commas; a rule that cannot be read ends the process. */
static int parse_rules(const char *variable, struct rule *rules, bool fail)
{
	int count = 0;
	const char *text = getenv(variable);
	char *copy = text ? strdup(text) : NULL, *save = NULL;

	for (char *one = copy ? strtok_r(copy, ",", &save) : NULL; one;
	     one = strtok_r(NULL, ",", &save)) {
		char *second = strchr(one, ':'), *third = second ? strchr(second + 1, ':') : NULL;
		struct rule *rule = &rules[count];

		if (!second || (fail && !third) || count == MAX_RULES ||
		    (size_t)(second - one) >= sizeof(rule->call)) {
			fprintf(stderr, "%s: cannot read rule '%s'\n", variable, one);
			_exit(97);
		}
		memcpy(rule->call, one, second - one);
		if (third)
			*third++ = 0;
		parse_which(fail ? second + 1 : third, rule);
		if (fail)
			rule->error = atoi(third);
		else
			rule->seconds = atof(second + 1);
		count++;
	}
	free(copy);
	return count;
}

static void choose_devices(void)
{
	int present = bytes_setting("GPUMEMPROF_FAKE_DEVICES", 1);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	present = present > MAX_DEVICES ? MAX_DEVICES : present;
	if (!visible) {
		for (int i = 0; i < present; i++)
			settings.physical[i] = i;
		settings.devices = present;
		return;
	}
	while (*visible && settings.devices < MAX_DEVICES) {
		char *end;
		long number = strtol(visible, &end, 10);
		if (end == visible || number < 0 || number >= present)
			break;	/* the genuine driver hides what follows an invalid number */
		settings.physical[settings.devices++] = number;
		visible = *end == ',' ? end + 1 : end;
	}
}

static void before_fork(void)
{
	pthread_mutex_lock(&fake_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&fake_lock);
}

static void after_fork_child(void)
{
	forked_after_init = initialized;
	pthread_mutex_unlock(&fake_lock);
}

__attribute__((constructor)) static void read_settings(void)
{
	choose_devices();
	settings.device_bytes = bytes_setting("GPUMEMPROF_FAKE_DEVICE_BYTES", 80ull << 30);
	settings.context_bytes = bytes_setting("GPUMEMPROF_FAKE_CONTEXT_BYTES", 0);
	settings.host_bytes = bytes_setting("GPUMEMPROF_FAKE_HOST_BYTES", 1ull << 40);
	settings.retain_late = bytes_setting("GPUMEMPROF_FAKE_RETAIN_LATE", 0) != 0;
	fail_count = parse_rules("GPUMEMPROF_FAKE_FAIL", fail_rules, true);
	sleep_count = parse_rules("GPUMEMPROF_FAKE_SLEEP", sleep_rules, false);
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static struct call_site **bucket_of(const char *name)
{
	unsigned hash = 5381;
	for (const char *c = name; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	return &sites[hash % SITE_BUCKETS];
}

struct call_site *site_find(const char *name)
{
	struct call_site **bucket = bucket_of(name), *site;

	pthread_mutex_lock(&fake_lock);
	for (site = *bucket; site && strcmp(site->name, name); site = site->next)
		;
	if (!site) {
		site = calloc(1, sizeof(*site));
		site->name = strdup(name);	/* the library that named it may be unloaded */
		site->next = *bucket;
		*bucket = site;
	}
	pthread_mutex_unlock(&fake_lock);
	return site;
}

/* Calls visit for every site entered at least once; with fake_lock held. */
void sites_visit(void (*visit)(const struct call_site *site, void *arg), void *arg)
{
	for (int i = 0; i < SITE_BUCKETS; i++)
		for (struct call_site *site = sites[i]; site; site = site->next)
			if (site->entered)
				visit(site, arg);
}

static const struct rule *matching(const struct rule *rules, int count, const char *call,
				   unsigned long number)
{
	for (int i = 0; i < count; i++)
		if (number >= rules[i].first && number <= rules[i].last &&
		    !strcmp(rules[i].call, call))
			return &rules[i];
	return NULL;
}

CUresult call_enter(struct call_site *site)
{
	unsigned long number = __atomic_add_fetch(&site->entered, 1, __ATOMIC_RELAXED);
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	const struct rule *rule;

	while (depth && frames[depth - 1] <= here)
		depth--;	/* that call was left by longjmp */
	if (depth == 0)
		__atomic_add_fetch(&site->outermost, 1, __ATOMIC_RELAXED);
	if (depth < (int)(sizeof(frames) / sizeof(frames[0])))
		frames[depth++] = here;
	if (hook)
		hook(site->name);	/* may not return: no lock is held */
	rule = matching(sleep_rules, sleep_count, site->name, number);
	if (rule) {
		struct timespec left = { (time_t)rule->seconds,
					 (rule->seconds - (time_t)rule->seconds) * 1e9 };
		while (nanosleep(&left, &left))
			;
	}
	rule = matching(fail_rules, fail_count, site->name, number);
	return rule ? rule->error : CUDA_SUCCESS;
}

CUresult call_leave(struct call_site *site, CUresult result)
{
	if (depth)
		depth--;
	if (result != CUDA_SUCCESS)
		__atomic_add_fetch(&site->failed, 1, __ATOMIC_RELAXED);
	return result;
}

EXPORT void fake_set_hook(void (*chosen)(const char *call))
{
	hook = chosen;
}
