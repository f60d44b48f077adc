/* SPDX-License-Identifier: Apache-2.0 */
/* The truth: exactly what is live, per device and kind, and what failed. All with fake_lock held. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

void sites_visit(void (*visit)(const struct call_site *site, void *arg), void *arg);

static const char *const kind_names[KINDS] = { "device", "managed", "array", "pinned_host" };

struct figures {
	uint64_t live_bytes, live_count, total_bytes, total_count, peak_bytes;
};

static struct figures by_kind[MAX_DEVICES][KINDS];
static struct figures gpu[MAX_DEVICES];		/* device + managed + array */
static struct figures process;			/* the same over all devices */
static uint64_t context_bytes[MAX_DEVICES];
static int64_t imports;

static void grow(struct figures *f, uint64_t size)
{
	f->live_bytes += size;
	f->live_count++;
	f->total_bytes += size;
	f->total_count++;
	if (f->live_bytes > f->peak_bytes)
		f->peak_bytes = f->live_bytes;
}

static void shrink(struct figures *f, uint64_t size)
{
	f->live_bytes -= size;
	f->live_count--;
}

uint64_t account_used(int device)
{
	return by_kind[device][KIND_DEVICE].live_bytes + by_kind[device][KIND_ARRAY].live_bytes +
	       context_bytes[device];
}

static bool has_room(enum kind kind, int device, uint64_t size)
{
	uint64_t used = 0;

	if (kind == KIND_DEVICE || kind == KIND_ARRAY) {
		used = account_used(device);
		return used <= settings.device_bytes && size <= settings.device_bytes - used;
	}
	/* managed memory may exceed its GPU: like pinned memory, the host limits it */
	for (int i = 0; i < MAX_DEVICES; i++)
		used += by_kind[i][kind].live_bytes;
	return size <= settings.host_bytes - used;
}

bool account_add(enum kind kind, int device, uint64_t size)
{
	if (!has_room(kind, device, size))
		return false;
	grow(&by_kind[device][kind], size);
	if (kind != KIND_PINNED_HOST) {
		grow(&gpu[device], size);
		grow(&process, size);
	}
	return true;
}

void account_remove(enum kind kind, int device, uint64_t size)
{
	shrink(&by_kind[device][kind], size);
	if (kind != KIND_PINNED_HOST) {
		shrink(&gpu[device], size);
		shrink(&process, size);
	}
}

void account_context(int device, bool added)
{
	if (added)
		context_bytes[device] += settings.context_bytes;
	else
		context_bytes[device] -= settings.context_bytes;
}

void account_import(int change)
{
	imports += change;
}

static void print_figures(FILE *out, const char *name, const struct figures *f)
{
	fprintf(out,
		"\"%s\":{\"live_bytes\":%lu,\"live_count\":%lu,\"total_bytes\":%lu,"
		"\"total_count\":%lu,\"peak_bytes\":%lu}",
		name, f->live_bytes, f->live_count, f->total_bytes, f->total_count, f->peak_bytes);
}

struct listing {
	FILE *out;
	int count;
};

static void print_site(const struct call_site *site, void *arg)
{
	struct listing *listing = arg;
	fprintf(listing->out, "%s\"%s\":{\"entered\":%lu,\"outermost\":%lu,\"failed\":%lu}",
		listing->count++ ? "," : "", site->name, site->entered, site->outermost,
		site->failed);
}

/*
 * {"pid":..,"imports":..,"process_gpu":FIGURES,"devices":[{"context_bytes":..,"gpu":FIGURES,
 *  "device":FIGURES,"managed":..,"array":..,"pinned_host":..},..],
 *  "calls":{NAME:{"entered":..,"outermost":..,"failed":..},..}}
 */
static void print_json(FILE *out)
{
	fprintf(out, "{\"pid\":%d,\"imports\":%ld,", getpid(), imports);
	print_figures(out, "process_gpu", &process);
	fputs(",\"devices\":[", out);
	for (int i = 0; i < settings.devices; i++) {
		fprintf(out, "%s{\"context_bytes\":%lu,", i ? "," : "", context_bytes[i]);
		print_figures(out, "gpu", &gpu[i]);
		for (int kind = 0; kind < KINDS; kind++) {
			fputc(',', out);
			print_figures(out, kind_names[kind], &by_kind[i][kind]);
		}
		fputc('}', out);
	}
	fputs("],\"calls\":{", out);
	sites_visit(print_site, &(struct listing){ out, 0 });
	fputs("}}\n", out);
}

EXPORT size_t fake_stats_json(char *buffer, size_t size)
{
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);

	if (!out)
		return 0;
	pthread_mutex_lock(&fake_lock);
	print_json(out);
	pthread_mutex_unlock(&fake_lock);
	fclose(out);
	if (size) {
		size_t copied = length < size ? length : size - 1;
		memcpy(buffer, text, copied);
		buffer[copied] = 0;
	}
	free(text);
	return length;
}

__attribute__((destructor)) static void write_stats(void)
{
	const char *pattern = getenv("GPUMEMPROF_FAKE_STATS");
	char path[4096], part[4200];
	const char *mark = pattern ? strstr(pattern, "%p") : NULL;
	FILE *out;

	if (!pattern || !*pattern || forked_after_init)
		return;
	if (mark)
		snprintf(path, sizeof(path), "%.*s%d%s", (int)(mark - pattern), pattern, getpid(),
			 mark + 2);
	else
		snprintf(path, sizeof(path), "%s", pattern);
	snprintf(part, sizeof(part), "%s.%d.part", path, getpid());
	out = fopen(part, "w");
	if (!out)
		return;
	print_json(out);
	fclose(out);
	rename(part, path);	/* a reader sees all of it or nothing */
}
