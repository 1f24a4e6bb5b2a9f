/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kmem.h"

static int64_t meminfo(const char *text, const char *key)
{
	const char *p = strstr(text, key);

	return p ? atoll(p + strlen(key)) * 1024 : 0;
}

static void read_text(const char *path, char *buf, size_t len)
{
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(buf, 1, len - 1, f) : 0;

	buf[n] = '\0';
	if (f)
		fclose(f);
}

struct kmem kmem_read(void)
{
	char text[8192];
	struct kmem m;
	const char *p;

	read_text("/proc/meminfo", text, sizeof(text));
	m.used = meminfo(text, "MemTotal:") - meminfo(text, "MemFree:") -
		 meminfo(text, "\nBuffers:") - meminfo(text, "\nCached:") -
		 meminfo(text, "SReclaimable:");
	m.slab = meminfo(text, "SUnreclaim:");
	read_text("/proc/net/sockstat", text, sizeof(text));
	p = strstr(text, "TCP: ");
	p = p ? strstr(p, " mem ") : NULL;
	m.accounted = p ? atoll(p + 5) * sysconf(_SC_PAGESIZE) : 0;
	return m;
}

void kmem_queued(const int *port, int to, int n, int64_t *ret_bytes, int64_t *ret_unread)
{
	FILE *f = fopen("/proc/net/tcp", "re");
	unsigned int local, far, tx, rx;
	char line[300];

	memset(ret_bytes, 0, (size_t)n * sizeof(*ret_bytes));
	memset(ret_unread, 0, (size_t)n * sizeof(*ret_unread));
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, " %*d: %*x:%x %*x:%x %*x %x:%x", &local, &far, &tx, &rx) != 4)
			continue;
		for (int i = 0; i < n; i++) {
			bool theirs = (int)local == port[i] && (int)far == to;
			bool ours = (int)local == to && (int)far == port[i];

			if (theirs || ours)
				ret_bytes[i] += (int64_t)tx + rx;
			if (ours)
				ret_unread[i] = rx;
		}
	}
	if (f)
		fclose(f);
}
