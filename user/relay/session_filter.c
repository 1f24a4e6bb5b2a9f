// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_filter.h"

#include <stdlib.h>
#include <string.h>

#include "relay/session.h"

void session_filter_init(struct session_filter *f)
{
	*f = (struct session_filter){ .carrier = FILTER_ANY };
}

void session_filter_close(struct session_filter *f)
{
	acl_close(&f->clients);
	free(f->ids);
	session_filter_init(f);
}

static int compare_ids(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

void session_filter_sort(struct session_filter *f)
{
	if (f->n_ids)
		qsort(f->ids, f->n_ids, sizeof(*f->ids), compare_ids);
}

static bool has_carrier(const struct session *s, enum carrier c)
{
	return flow_carrier(&s->flows[0]) == c || flow_carrier(&s->flows[1]) == c;
}

bool session_filter_matches(const struct session_filter *f, const struct session *s)
{
	if (f->n_ids && !bsearch(&s->id, f->ids, f->n_ids, sizeof(*f->ids), compare_ids))
		return false;
	if (f->carrier != FILTER_ANY && !has_carrier(s, (enum carrier)f->carrier))
		return false;
	if (f->forward && strcmp(forward_name(forward_of(s)), f->forward) != 0)
		return false;
	return !f->clients.n || acl_allows(&f->clients, &s->client.sa);
}
