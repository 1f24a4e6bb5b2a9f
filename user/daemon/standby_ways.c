// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/standby_ways.h"

#include "base/array.h"
#include "base/clock.h"

#define WAYS_LOOK_MS 50
#define WAYS_LEAVE_MS 1000 /* packets may come that long after their address has left */

int standby_ways_open(struct standby_ways *w, struct graft_table *gs)
{
	int e = routes_open(&w->routes);

	if (e)
		return e;
	w->grafts = gs;
	w->room = graft_table_total(gs);
	w->addresses = allocated(calloc((size_t)w->room + 1, sizeof(*w->addresses)));
	pthread_mutex_init(&w->lock, NULL);
	return 0;
}

void standby_ways_close(struct standby_ways *w)
{
	routes_close(&w->routes);
	free(w->addresses);
	pthread_mutex_destroy(&w->lock);
}

/* --- addresses --- */

/* RET: the place of A, or the place where A would be. */
static bool ways_find_address(const struct standby_ways *w, const struct graft_addr *a,
			      struct standby_address **ret)
{
	*ret = w->addresses;
	for (size_t n = w->n; n; n /= 2)
		if (memcmp(&(*ret)[n / 2].is, a, sizeof(*a)) < 0) {
			*ret += n / 2 + 1;
			n--;
		}
	return *ret < w->addresses + w->n && !memcmp(&(*ret)->is, a, sizeof(*a));
}

static bool ways_have_local(struct standby_ways *w, const struct graft_addr *a)
{
	return routes_ask(&w->routes, a, NULL, 0).local;
}

bool standby_ways_follow(struct standby_ways *w, const struct graft_addr *a)
{
	struct standby_address *at;
	bool known, room;

	pthread_mutex_lock(&w->lock);
	known = ways_find_address(w, a, &at);
	room = w->n < w->room;
	if (!known && room) {
		memmove(at + 1, at, (size_t)(&w->addresses[w->n++] - at) * sizeof(*at));
		*at = (struct standby_address){ .is = *a };
		at->here = ways_have_local(w, a) && graft_table_set_address(w->grafts, a, true);
	}
	pthread_mutex_unlock(&w->lock);
	return known || room;
}

/* Sessions that workers have count, too: they may become STANDBY again. */
static void ways_mark_used(struct standby_ways *w)
{
	struct standby_address *at;

	for (struct held h = { 0 }; held_next(w->grafts, &h); h.at++)
		for (unsigned int leg = 0; leg < 2; leg++)
			if (ways_find_address(w, &h.leg[leg]->tuple.local, &at))
				at->used = true;
}

void standby_ways_forget(struct standby_ways *w)
{
	struct standby_address *to = w->addresses;

	pthread_mutex_lock(&w->lock);
	ways_mark_used(w);
	for (struct standby_address *at = to, *end = to + w->n; at < end; at++) {
		bool used = at->used;

		at->used = false;
		if (used)
			*to++ = *at;
		else
			graft_table_set_address(w->grafts, &at->is, false);
	}
	w->n = (unsigned int)(to - w->addresses);
	pthread_mutex_unlock(&w->lock);
}

/* True: A has left. */
static bool ways_look_at(struct standby_ways *w, struct standby_address *a, uint64_t now)
{
	bool here = ways_have_local(w, &a->is);

	if (here)
		a->gone_ms = 0;
	else if (a->here && !a->gone_ms)
		a->gone_ms = now + WAYS_LEAVE_MS;
	if (here == a->here || (!here && now < a->gone_ms)) {
		w->news = w->news || a->gone_ms;
		return false;
	}
	a->here = graft_table_set_address(w->grafts, &a->is, here) && here;
	a->gone_ms = 0;
	w->moves++;
	return !here;
}

bool standby_ways_look(struct standby_ways *w)
{
	uint64_t now = clock_ms();
	bool left = false;

	pthread_mutex_lock(&w->lock);
	if (w->news) {
		w->looked_ms = now;
		w->news = false;
		for (struct standby_address *a = w->addresses; a < w->addresses + w->n; a++)
			left = ways_look_at(w, a, now) || left;
	}
	pthread_mutex_unlock(&w->lock);
	return left;
}

bool standby_ways_changed(struct standby_ways *w)
{
	bool due;

	pthread_mutex_lock(&w->lock);
	routes_forget(&w->routes);
	w->news = true;
	due = clock_ms() - w->looked_ms >= WAYS_LOOK_MS; /* else the next look comes soon */
	pthread_mutex_unlock(&w->lock);
	return due && standby_ways_look(w);
}

/* --- routes --- */

void standby_ways_find(struct standby_ways *w, const struct held *h)
{
	pthread_mutex_lock(&w->lock);
	for (unsigned int i = 0; i < 2; i++) {
		struct graft_leg *l = h->leg[i];
		/* the kernel tells no route from an address that is not here */
		bool here = ways_have_local(w, &l->tuple.local);
		struct route r = routes_ask(&w->routes, &l->tuple.remote,
					    here ? &l->tuple.local : NULL, l->way.mark);

		graft_table_set_way(w->grafts, &l->way, r.ifindex, r.mtu);
	}
	pthread_mutex_unlock(&w->lock);
}
