// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a connection leads from one forward to another if an address of the
 * upstream reaches a listener.  No two listeners overlap, so it is one at most, which a table in
 * the order of ports finds.  A search in depth then looks for a way that comes back to itself.
 */
#include "config/config_listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "config/config_paths.h"

/* Whatever its addresses are; port 0 is another port each time. */
static bool same_name(const struct endpoint *a, const struct endpoint *b)
{
	return a->named && b->named && a->named_port && !strcasecmp(a->text, b->text);
}

bool config_feeds_itself(const struct forward_conf *fc)
{
	if (same_name(&fc->listen, &fc->upstream))
		return true;
	for (size_t i = 0; i < fc->listen.n_addrs; i++)
		for (size_t j = 0; j < fc->upstream.n_addrs; j++)
			if (addr_leads_to(&fc->upstream.addrs[j], &fc->listen.addrs[i]))
				return true;
	return false;
}

/* --- two listeners --- */

/* Two paths to one socket; abstract ones begin with NUL. */
static bool same_socket(const struct addr *a, const struct addr *b)
{
	const struct sockaddr_un *x = (const struct sockaddr_un *)&a->ss;
	const struct sockaddr_un *y = (const struct sockaddr_un *)&b->ss;

	return a->ss.ss_family == AF_UNIX && b->ss.ss_family == AF_UNIX && x->sun_path[0] &&
	       path_same(x->sun_path, y->sun_path);
}

static bool overlap(const struct addr *a, const struct addr *b, bool *ret_same)
{
	if (a->ss.ss_family != b->ss.ss_family || addr_port(a) != addr_port(b))
		return false;
	if (addr_takes_any_port(a))
		return false; /* the kernel picks two different ports */
	*ret_same = addr_equal(a, b) || same_socket(a, b);
	return *ret_same || addr_is_any(a) || addr_is_any(b);
}

const struct endpoint *config_overlap(const struct config *c, size_t n, bool *ret_same)
{
	const struct endpoint *b = &c->forwards[n].listen;

	for (size_t i = 0; i < n; i++) {
		const struct endpoint *a = &c->forwards[i].listen;

		*ret_same = same_name(a, b);
		if (*ret_same)
			return a;
		for (size_t k = 0; k < a->n_addrs * b->n_addrs; k++)
			if (overlap(&a->addrs[k / b->n_addrs], &b->addrs[k % b->n_addrs], ret_same))
				return a;
	}
	return NULL;
}

/* --- loops --- */

#define NOWHERE SIZE_MAX

/* An address that is listened on. */
struct place {
	const struct addr *addr;
	size_t forward;
};

struct places {
	struct place *list; /* owned; in the order of addr_port() */
	size_t n;
};

static int compare_ports(const void *a, const void *b)
{
	in_port_t x = addr_port(((const struct place *)a)->addr);
	in_port_t y = addr_port(((const struct place *)b)->addr);

	return (x > y) - (x < y);
}

static int find_places(const struct config *c, struct places *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n_forwards; i++)
		n += c->forwards[i].listen.n_addrs;
	ret->n = 0;
	ret->list = calloc(n + 1, sizeof(*ret->list));
	if (!ret->list)
		return -ENOMEM;
	for (size_t i = 0; i < c->n_forwards; i++) {
		const struct endpoint *e = &c->forwards[i].listen;

		for (size_t k = 0; k < e->n_addrs; k++)
			if (!addr_takes_any_port(&e->addrs[k]))
				ret->list[ret->n++] = (struct place){ &e->addrs[k], i };
	}
	qsort(ret->list, ret->n, sizeof(*ret->list), compare_ports);
	return 0;
}

/* The forward that takes connections to TO, or NOWHERE: none that is known to. */
static size_t leads_to(const struct places *p, const struct addr *to)
{
	in_port_t port = addr_port(to);
	size_t low = 0, high = p->n;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (addr_port(p->list[middle].addr) < port)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < p->n && addr_port(p->list[low].addr) == port; low++)
		if (addr_leads_to(to, p->list[low].addr))
			return p->list[low].forward;
	return NOWHERE;
}

/* The forward that listens at the name of E, or NOWHERE. */
static size_t name_leads_to(const struct config *c, const struct endpoint *e)
{
	for (size_t i = 0; e->named && i < c->n_forwards; i++)
		if (same_name(&c->forwards[i].listen, e))
			return i;
	return NOWHERE;
}

/* What is known of a forward. */
struct step {
	enum { NEW, ON_THE_WAY, DONE } state;
	size_t from; /* on the way; NOWHERE: the first */
	size_t addr; /* of the upstream, that is next; behind the last one: its name */
};

/* The way from FIRST on. */
static bool search(const struct config *c, const struct places *p, struct step *steps, size_t first,
		   size_t *ret_from, size_t *ret_to)
{
	size_t at = first;

	steps[at] = (struct step){ .state = ON_THE_WAY, .from = NOWHERE };
	while (at != NOWHERE) {
		const struct endpoint *upstream = &c->forwards[at].upstream;
		struct step *s = &steps[at];
		size_t to;

		if (s->addr > upstream->n_addrs) {
			s->state = DONE;
			at = s->from;
			continue;
		}
		to = s->addr < upstream->n_addrs ? leads_to(p, &upstream->addrs[s->addr]) :
						   name_leads_to(c, upstream);
		s->addr++;
		if (to == NOWHERE || steps[to].state == DONE)
			continue;
		if (steps[to].state == ON_THE_WAY) {
			*ret_from = at;
			*ret_to = to;
			return true;
		}
		steps[to] = (struct step){ .state = ON_THE_WAY, .from = at };
		at = to;
	}
	return false;
}

int config_find_loop(const struct config *c, size_t *ret_from, size_t *ret_to)
{
	struct step *steps = calloc(c->n_forwards, sizeof(*steps));
	struct places places = { 0 };
	bool found = false;
	int r = steps ? find_places(c, &places) : -ENOMEM;

	for (size_t i = 0; !r && !found && i < c->n_forwards; i++)
		found = steps[i].state == NEW && search(c, &places, steps, i, ret_from, ret_to);
	free(places.list);
	free(steps);
	return r ?: found;
}
