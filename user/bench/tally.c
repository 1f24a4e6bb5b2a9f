// SPDX-License-Identifier: BSD-2-Clause
#include "tally.h"

#include <string.h>

void tally_open(struct tally *t)
{
	memset(t, 0, sizeof(*t));
	t->least = UINT64_MAX;
}

static void add_array(uint64_t *to, const uint64_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

static void at_least(uint64_t *to, uint64_t value)
{
	if (value > *to)
		*to = value;
}

void tally_add(struct tally *to, const struct tally *from)
{
	to->opened += from->opened;
	to->failed += from->failed;
	to->requests += from->requests;
	to->bytes_up += from->bytes_up;
	to->bytes_down += from->bytes_down;
	to->wrong += from->wrong;
	to->cpu_ns += from->cpu_ns;
	add_array(to->errors, from->errors, N_CAUSES);
	add_array(to->connect_errno, from->connect_errno, ERRNO_MAX);
	if (from->least < to->least)
		to->least = from->least;
	at_least(&to->most, from->most);
	at_least(&to->began_ns, from->began_ns);
	at_least(&to->measured_ns, from->measured_ns);
	at_least(&to->max_rss_kib, from->max_rss_kib);
	histogram_add(&to->latency, &from->latency);
}

void tally_share(struct tally *t, uint64_t bytes)
{
	if (bytes < t->least)
		t->least = bytes;
	at_least(&t->most, bytes);
}
