// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/take_over.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/control_requests.h"
#include "daemon/grafted.h"
#include "relay/admission.h"
#include "relay/session_life.h"
#include "relay/udp/udp_life.h"

struct take_over {
	int fd; /* to the other daemon, or with what it has left */
	bool stored;
	bool grafts;            /* the other daemon does, or did */
	int pidfd;              /* of the other daemon */
	struct session **ahead; /* the sessions that came ahead; owned */
	unsigned int n_ahead;
	struct bundle bundle; /* of all others */
	uint64_t began_ns;    /* when the other daemon's workers began to wait, about */
	unsigned int sessions, refused, renewed;
	bool taken;
	char why[128]; /* the other daemon refuses, and goes on */
};

static int take_fault(const struct take_over *t, int e)
{
	return log_complain(e, "take-over: %s%s", *t->why ? "the other daemon goes on: " : "",
			    *t->why          ? t->why :
			    e == -EPIPE      ? "the other daemon has ended" :
			    e == -ECONNRESET ? "the other daemon has ended" :
					       strerror(-e));
}

/* As bundle_receive(); -ECANCELED: the other daemon refuses. */
static int take_receive(struct take_over *t, struct bundle *b)
{
	struct record r;
	int e = bundle_receive(b, t->fd);

	if (e || !bundle_get(b, &r))
		return e;
	if (r.kind == HANDED_REFUSED) {
		record_read(&r, t->why, sizeof(t->why) - 1);
		bundle_free(b);
		return -ECANCELED;
	}
	b->at = 0;
	b->fds_at = 1;
	return 0;
}

/* --- before this daemon comes up --- */

/* Send the request.  The answer is a line, and bundles follow. */
static int take_ask(struct take_over *t, pid_t pid)
{
	static const char ask[] = "{\"command\":\"hand-over\"}\n";
	struct json_object *answer, *error;
	char line[1024];
	size_t n = 0;
	int e;

	if (send(t->fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) < 0)
		return take_fault(t, -errno);
	while (n < sizeof(line) - 1 && recv(t->fd, line + n, 1, 0) == 1 && line[n] != '\n')
		n++;
	line[n] = '\0';
	answer = request_json(line);
	error = json_object_object_get(answer, "error");
	e = answer && !error ?
		    0 :
		    log_complain(-EBUSY, "take-over: %s",
				 json_object_get_string(json_object_object_get(error, "message")) ?:
					 "no answer");
	if (!e)
		t->pidfd = pidfd_open(
			json_object_get_int(json_object_object_get(answer, "pid")) ?: pid, 0);
	json_object_put(answer);
	return e;
}

static int take_connect(struct take_over *t, const char *path)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	const struct timeval patience = { .tv_sec = BUNDLE_MS / 1000 };
	struct ucred peer;
	socklen_t len = sizeof(peer);

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
	t->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(t->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (t->fd < 0 || connect(t->fd, (struct sockaddr *)&un, sizeof(un)) ||
	    getsockopt(t->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return take_fault(t, -errno);
	/* PEER is the daemon that has made the socket, and may be an older one */
	return take_ask(t, peer.pid);
}

/* The texts of an order stand behind each other. */
static void take_order(const struct record *r, struct upstream_orders *orders)
{
	const char *end = (const char *)r->more + r->n_more, *texts[3], *at = (const char *)r->more;
	uint32_t adds;

	record_read(r, &adds, sizeof(adds));
	for (int i = 0; i < 3; i++, at += strlen(at) + 1) {
		if (!memchr(at, '\0', (size_t)(end - at)))
			return;
		texts[i] = at;
	}
	orders_give(orders, texts[0], texts[1], adds ? texts[2] : NULL);
}

int take_over_begin(const char *path, int store, struct upstream_orders *orders,
		    struct take_over **ret)
{
	struct take_over *t;
	struct bundle b = { 0 };
	struct record r;
	int e = 0;

	if (!path && store < 0)
		return 0;
	*ret = t = allocated(calloc(1, sizeof(*t)));
	t->fd = store;
	t->pidfd = -1;
	t->stored = !path;
	if (path)
		e = take_connect(t, path);
	if (e)
		return e;
	e = take_receive(t, &b);
	while (!e && bundle_get(&b, &r)) {
		t->grafts = t->grafts || r.kind == HANDED_GRAFTS;
		if (r.kind == HANDED_ORDER)
			take_order(&r, orders);
		if (r.kind == HANDED_SOCKET && r.n_fds == 1 && !given_put(r.fds[0], true))
			close(r.fds[0]);
	}
	bundle_free(&b);
	return e ? take_fault(t, e) : 0;
}

bool take_over_of_grafts(const struct take_over *t)
{
	return t && t->grafts;
}

/* --- sessions --- */

/* This daemon has come up, and has these forwards. */
static int take_say_forwards(const struct take_over *t, const struct service *sv)
{
	const struct graft_table *gs = sv->shared->grafts;
	uint64_t pins = gs ? graft_table_pins(gs) ?: UINT64_MAX : 0;
	struct bundle b = { 0 };
	struct forward *f;
	int e;

	TAILQ_FOREACH(f, &sv->forwards.list, in_forwards)
		bundle_put(&b, &(struct record){ .kind = HANDED_FORWARD,
						 .of = f->tag,
						 .at = (uint8_t *)&pins,
						 .size = sizeof(pins) });
	e = bundle_send(&b, t->fd);
	bundle_free(&b);
	return e;
}

/* The sockets of a session that adopt_sessions() finds in its slot. */
static void take_frozen(struct graft_table *gs, const struct record *r)
{
	uint32_t slot;

	record_read(r, &slot, sizeof(slot));
	if (gs && r->n_fds == 2 && slot < graft_table_total(gs) &&
	    r->of == (uint32_t)graft_table_pins(gs))
		graft_give_sockets(gs, slot, r->fds);
	else
		for (size_t i = 0; i < r->n_fds; i++)
			close(r->fds[i]);
}

/* 0, even if R is refused; or -errno. */
static int take_one(struct take_over *t, struct service *sv, const struct record *r)
{
	struct threads *ts = &sv->threads;
	struct forward *f = forward_with_tag(&sv->forwards, r->of);
	struct session *s;
	int e = 0;

	if (r->kind == HANDED_SERVER && f)
		servers_take_over(&f->servers, r);
	if (r->kind == HANDED_FROZEN)
		take_frozen(sv->shared->grafts, r);
	if (r->kind != HANDED_SESSION && r->kind != HANDED_UDP_SESSION)
		return 0;
	if (!f)
		e = -ENOENT;
	else if (r->kind == HANDED_SESSION)
		e = session_take_over(&ts->workers[t->sessions % ts->n], f, r, &s);
	else
		e = udp_session_take_over(ts->workers, f, r);
	t->sessions += !e;
	/* UDP: no socket is at the address to which the client sends */
	if (!e || e == -ENOMEM || (!t->stored && e != -ENOENT))
		return e;
	for (size_t i = 0; i < r->n_fds; i++)
		close(r->fds[i]);
	t->refused++;
	return 0;
}

static int take_one_ahead(struct take_over *t, struct service *sv, const struct record *r)
{
	struct worker *w = &sv->threads.workers[t->n_ahead % sv->threads.n];
	struct forward *f = forward_with_tag(&sv->forwards, r->of);

	t->ahead = allocated(reallocarray(t->ahead, t->n_ahead + 1, sizeof(struct session *)));
	t->ahead[t->n_ahead++] = NULL;
	return r->kind != HANDED_SESSION || !f ?
		       -EPROTO :
		       session_take_over(w, f, r, &t->ahead[t->n_ahead - 1]);
}

/* The other daemon goes on with these sessions meanwhile: a bundle of each worker, and an empty one. */
static int take_ahead(struct take_over *t, struct service *sv)
{
	struct bundle b = { 0 };
	struct record r;
	bool more;
	int e;

	do {
		e = take_receive(t, &b);
		more = b.len;
		while (!e && bundle_get(&b, &r))
			e = take_one_ahead(t, sv, &r);
		bundle_free(&b);
	} while (!e && more);
	t->sessions = t->n_ahead;
	return e ?: bundle_send(&b, t->fd);
}

static void take_back(struct take_over *t, size_t at, bool lost)
{
	if (at >= t->n_ahead || !t->ahead[at])
		return;
	session_take_back(t->ahead[at], lost);
	t->ahead[at] = NULL;
	t->sessions--;
}

/* Forget the sessions that have changed since then. */
static int take_back_changed(struct take_over *t)
{
	struct bundle b;
	struct record r;
	int e = take_receive(t, &b);

	while (!e && bundle_get(&b, &r))
		take_back(t, r.of, false);
	bundle_free(&b);
	return e;
}

static int take_confirm(struct take_over *t)
{
	struct bundle b = { 0 };
	int e = bundle_send(&b, t->fd) ?: take_receive(t, &b);

	bundle_free(&b);
	return e;
}

/*
 * E: has the connection ended because the other daemon is dead?  Then nobody takes sessions back.  If
 * it has refused, another one may have its sessions by now.
 */
static bool take_from_dead(struct take_over *t, int e)
{
	struct pollfd p = { .fd = t->pidfd, .events = POLLIN };
	struct bundle b;

	if (e != -EPIPE && e != -ECONNRESET)
		return false;
	do { /* it may have refused while this one was sending */
		e = take_receive(t, &b);
		bundle_free(&b);
	} while (!e);
	return !*t->why && (t->stored || (t->pidfd >= 0 && poll(&p, 1, BUNDLE_MS) == 1));
}

int take_over_sessions(struct take_over *t, struct service *sv)
{
	struct threads *ts = &sv->threads;
	struct record r;
	bool whole;
	int e;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		w->loop.now_ms = clock_ms();
	if (!t->stored)
		loop_share_descriptors();
	e = t->stored ? 0 : take_say_forwards(t, sv) ?: take_ahead(t, sv);
	t->began_ns = clock_ns();
	if (!e && !t->stored)
		e = take_back_changed(t);
	e = e ?: take_receive(t, &t->bundle);
	whole = !e;
	while (!e && bundle_get(&t->bundle, &r))
		e = take_one(t, sv, &r);
	if (!e && t->bundle.at != t->bundle.len)
		e = -EPROTO;
	if (!e && !t->stored)
		e = take_confirm(t);
	if (t->stored)
		sd_notify(0, "FDSTOREREMOVE=1\nFDNAME=" STORE_NAME);
	t->taken = !e || take_from_dead(t, e);
	if (!e || !t->taken)
		return e ? take_fault(t, e) : 0;
	for (size_t i = 0; !whole && i < t->n_ahead; i++)
		take_back(t, i, true); /* nobody knows what the other daemon has read of them */
	if (!whole)
		bundle_free(&t->bundle);
	return 0;
}

bool take_over_lacks(const struct take_over *t)
{
	return t && !t->stored && !t->taken;
}

void take_over_grafts(struct take_over *t, struct graft_table *gs, struct standby_addresses *w)
{
	uint32_t pins = (uint32_t)graft_table_pins(gs);
	struct record r;

	t->bundle.at = 0;
	t->bundle.fds_at = 1;
	while (bundle_get(&t->bundle, &r)) {
		struct graft_record g;
		uint32_t at = NO_SLOT;
		struct grafted h;
		const char *why;

		if (r.kind != HANDED_GRAFT || (pins && r.of == pins) ||
		    record_unpack(r.at, r.size, clock_ns(), &g, &why) <= 0 || g.kind != RECORD_TCP)
			continue;
		if (grafted_import(gs, &g, true, &at)) {
			t->refused++;
			continue;
		}
		h = grafted_at(gs, at);
		h.head->mirrored = GRAFT_UNKNOWN; /* no other relay has it */
		standby_addresses_find_routes(w, &h);
		grafted_wake(&h);
		t->renewed++;
	}
	t->bundle.fds_at = t->bundle.n_fds;
	if (t->renewed)
		log_info("take-over: %u grafted sessions have new maps", t->renewed);
}

int take_over_end(struct take_over *t, const struct graft_table *grafts)
{
	int pidfd = -1;

	if (!t)
		return -1;
	log_info("%u sessions are taken over; they have waited for %.1f ms", t->sessions,
		 (double)(clock_ns() - t->began_ns) / NS_PER_MS);
	if (t->refused)
		log_warning("%u sessions of the daemon before this one are reset: their forward is "
			    "gone from the configuration, or a limit is reached",
			    t->refused);
	if (t->stored && t->grafts && grafts) /* the sessions of its maps have new ones */
		graft_table_remove_others(grafts);
	bundle_free(&t->bundle);
	free(t->ahead);
	close(t->fd);
	if (t->renewed)
		pidfd = t->pidfd;
	else if (t->pidfd >= 0)
		close(t->pidfd);
	free(t);
	return pidfd;
}
