// SPDX-License-Identifier: BSD-2-Clause
/* By any thread: the table of addresses has a lock. */
#include "daemon/standby_addresses.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"

#define LEAVE_MS 1000 /* packets may still come for this time after their address has left */

/* --- addresses --- */

/* RET: the place of A, or the place where A would be. */
static bool addresses_find(const struct standby_addresses *w, const struct graft_addr *a,
			   struct standby_address **ret)
{
	*ret = w->list;
	for (size_t n = w->n; n; n /= 2)
		if (memcmp(&(*ret)[n / 2].is, a, sizeof(*a)) < 0) {
			*ret += n / 2 + 1;
			n--;
		}
	return *ret < w->list + w->n && !memcmp(&(*ret)->is, a, sizeof(*a));
}

static bool addresses_are_local(struct standby_addresses *w, const struct graft_addr *a)
{
	return routes_ask(&w->routes, a, NULL, 0).local;
}

bool standby_addresses_follow(struct standby_addresses *w, const struct graft_addr *a)
{
	struct standby_address *at;
	bool known, room;

	pthread_mutex_lock(&w->lock);
	known = addresses_find(w, a, &at);
	room = w->n < w->room;
	if (!known && room) {
		memmove(at + 1, at, (size_t)(&w->list[w->n++] - at) * sizeof(*at));
		*at = (struct standby_address){ .is = *a };
		at->here = addresses_are_local(w, a) && graft_table_set_address(w->grafts, a, true);
	}
	pthread_mutex_unlock(&w->lock);
	return known || room;
}

void standby_addresses_forget(struct standby_addresses *w)
{
	struct standby_address *to = w->list, *at;

	pthread_mutex_lock(&w->lock);
	for (struct grafted h = { 0 }; grafted_next(w->grafts, &h); h.at++)
		for (unsigned int leg = 0; leg < 2; leg++)
			if (addresses_find(w, &h.leg[leg]->tuple.local, &at))
				at->used = true;
	at = to;
	for (const struct standby_address *end = to + w->n; at < end; at++) {
		bool used = at->used;

		at->used = false;
		if (used)
			*to++ = *at;
		else
			graft_table_set_address(w->grafts, &at->is, false);
	}
	w->n = (unsigned int)(to - w->list);
	pthread_mutex_unlock(&w->lock);
}

/* True: A has left. */
static bool addresses_look_at(struct standby_addresses *w, struct standby_address *a, uint64_t now)
{
	bool here = addresses_are_local(w, &a->is);

	if (here)
		a->gone_ms = 0;
	else if (a->here && !a->gone_ms)
		a->gone_ms = now + LEAVE_MS;
	if (here == a->here || (!here && now < a->gone_ms)) {
		w->news = w->news || a->gone_ms;
		return false;
	}
	a->here = graft_table_set_address(w->grafts, &a->is, here) && here;
	a->gone_ms = 0;
	w->moves++;
	return !here;
}

bool standby_addresses_look(struct standby_addresses *w)
{
	uint64_t now = clock_ms();
	bool left = false;

	pthread_mutex_lock(&w->lock);
	if (w->news) {
		w->looked_ms = now;
		w->news = false;
		for (struct standby_address *a = w->list; a < w->list + w->n; a++)
			left = addresses_look_at(w, a, now) || left;
	}
	pthread_mutex_unlock(&w->lock);
	return left;
}

uint64_t standby_addresses_news(struct standby_addresses *w)
{
	uint64_t age;

	pthread_mutex_lock(&w->lock);
	routes_forget(&w->routes);
	w->news = true;
	w->n_news++;
	age = clock_ms() - w->looked_ms;
	pthread_mutex_unlock(&w->lock);
	return age;
}

/* --- routes --- */

void standby_addresses_find_routes(struct standby_addresses *w, const struct grafted *h)
{
	pthread_mutex_lock(&w->lock);
	for (unsigned int i = 0; i < 2; i++) {
		struct graft_leg *l = h->leg[i];
		/* asked for a route from an address that is not here, the kernel gives none */
		bool here = addresses_are_local(w, &l->tuple.local);
		struct route r = routes_ask(&w->routes, &l->tuple.remote,
					    here ? &l->tuple.local : NULL, l->way.mark);

		graft_table_set_way(w->grafts, &l->way, r.ifindex, r.mtu);
	}
	pthread_mutex_unlock(&w->lock);
}

/* --- opening --- */

int standby_addresses_open(struct standby_addresses *w, struct graft_table *gs)
{
	int e = routes_open(&w->routes);

	if (e)
		return e;
	w->grafts = gs;
	w->room = graft_table_total(gs);
	w->list = allocated(calloc((size_t)w->room + 1, sizeof(*w->list)));
	pthread_mutex_init(&w->lock, NULL);
	return 0;
}
