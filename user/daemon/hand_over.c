// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * This daemon serves its sessions until the next one has come up.  Then all workers wait, each
 * session is packed, and its descriptors are sent; both daemons have them open.  Nothing has changed
 * here so far, so if the other daemon fails, the workers go on.  When the other daemon has said that
 * it has taken all, this one closes its descriptors without a word to any end.
 *
 * Grafted sessions need no record: they are in the pinned maps, as after any end of a daemon.
 *
 * All of this runs on a control thread.
 */
#include "daemon/hand_over.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/hand_over_stream.h"
#include "datapath/carrier_copy.h"
#include "relay/session_life.h"
#include "relay/session_record.h"
#include "relay/session_syn.h"
#include "relay/udp/udp_life.h"
#include "relay/udp/udp_record.h"

#define READY_MS 120000 /* for the other daemon to come up */
#define TAKEN_MS 5000   /* for it to take the sessions, which wait */
#define PAUSE_MS 2000   /* for the workers to come to their pause */
#define LEAVE_MS 500    /* for flows to leave the kernel */

struct hand_over {
	const struct actions *actions;
	struct service *service;
	struct shared *shared;
	struct hand_stream out;
	struct forward *forward; /* whose servers are sent */
	unsigned int sessions, kept;
	int fault; /* of the stream */
};

/* --- what it is told before it comes up --- */

static void hand_begin(struct hand_over *h)
{
	uint8_t buf[16];
	struct codec c = { .at = buf, .end = buf + sizeof(buf), .packs = true };
	bool grafts = h->shared->grafts && !probe_has_failed(h->shared->probe, ENGINE_GRAFT);
	int pins = grafts ? graft_table_pins(h->shared->grafts) : -1;

	codec_number(&c, (uint64_t)getpid(), 4);
	codec_number(&c, GRAFT_LAYOUT, 2);
	codec_number(&c, pins >= 0, 1);
	hand_put(&h->out, HAND_BEGIN, buf, (size_t)(c.at - buf), (size_t)(c.at - buf), &pins,
		 pins >= 0);
}

static void hand_listening(struct hand_over *h, const struct listening *l)
{
	uint8_t buf[2 * sizeof(struct addr) + 16];
	struct codec c = { .at = buf, .end = buf + sizeof(buf), .packs = true };
	unsigned int n = l->shared ? 1 : l->n_workers, n_fds = 0;
	int fds[WORKERS_MAX];

	for (unsigned int i = 0; i < n; i++) {
		const struct listener *ls = &l->at[i];

		fds[n_fds] = ls->udp ? ls->udp->source.fd : ls->source.fd;
		n_fds += fds[n_fds] >= 0;
	}
	codec_number(&c, l->udp, 1);
	codec_number(&c, l->shared, 1);
	codec_number(&c, l->given, 1);
	for (int i = 0; i < 2; i++) {
		struct addr a = i ? l->addr : l->asked;

		codec_number(&c, a.len, 2);
		codec_bytes(&c, &a.ss, (int)a.len);
	}
	if (n_fds)
		hand_put(&h->out, HAND_LISTEN, buf, (size_t)(c.at - buf), (size_t)(c.at - buf), fds,
			 n_fds);
}

/* --- sessions --- */

struct leaving {
	_Atomic unsigned int n; /* sessions with a flow in the kernel */
};

static void hand_leave(struct worker *w, const void *arg)
{
	struct leaving *l = (struct leaving *)arg;

	atomic_fetch_add(&l->n, worker_leave_kernel(w));
}

/*
 * Let flows leave the kernel, whose queues cannot be handed over, while the workers run.  A flow
 * whose target takes nothing stays, with its session.
 */
static void hand_leave_kernel(struct hand_over *h)
{
	uint64_t end_ms = clock_ms() + LEAVE_MS;
	struct leaving l = { 0 };

	atomic_store(&h->shared->hands_over, true);
	do {
		atomic_store(&l.n, 0);
		threads_call(&h->service->threads, hand_leave, &l);
	} while (atomic_load(&l.n) && clock_ms() < end_ms && poll(NULL, 0, 1) <= 0);
}

static bool hand_session(void *arg, struct session *s, const struct session_record *r)
{
	struct hand_over *h = arg;
	uint8_t buf[1024], *bytes;
	struct codec c = {
		.at = buf, .end = buf + sizeof(buf), .now_ns = clock_ns(), .packs = true
	};
	struct session_record copy = *r;
	int fds[2] = { s->sides[CLIENT].fd, s->sides[UPSTREAM].fd };
	size_t head, pending = r->flows[0].pending + r->flows[1].pending;

	session_record_code(&c, &copy);
	head = (size_t)(c.at - buf);
	bytes = hand_put(&h->out, HAND_SESSION, buf, head, head + pending, fds, r->open ? 2 : 1);
	if (!bytes) {
		h->fault = -ENOMEM;
		return false;
	}
	for (unsigned int dir = 0; dir < 2 && r->open; dir++) {
		carrier_get_pending(&s->flows[dir], bytes);
		bytes += r->flows[dir].pending;
	}
	h->sessions++;
	return true;
}

static bool hand_udp_session(void *arg, struct udp_session *s, const struct udp_record *r)
{
	struct hand_over *h = arg;
	uint8_t buf[512];
	struct codec c = {
		.at = buf, .end = buf + sizeof(buf), .now_ns = clock_ns(), .packs = true
	};
	struct udp_record copy = *r;

	udp_record_code(&c, &copy);
	if (!hand_put(&h->out, HAND_UDP_SESSION, buf, (size_t)(c.at - buf), (size_t)(c.at - buf),
		      &s->upstream->source.fd, 1)) {
		h->fault = -ENOMEM;
		return false;
	}
	h->sessions++;
	return true;
}

static void hand_server(void *arg, struct server *s)
{
	struct hand_over *h = arg;
	uint8_t buf[SERVER_NAME_LEN + SERVER_ERROR_LEN + 64];
	struct codec c = { .at = buf, .end = buf + sizeof(buf), .packs = true };

	codec_number(&c, h->forward->tag, 4);
	codec_text(&c, s->name, sizeof(s->name));
	health_code(&c, &s->health, clock_ms());
	codec_text(&c, s->error, sizeof(s->error));
	hand_put(&h->out, HAND_SERVER, buf, (size_t)(c.at - buf), (size_t)(c.at - buf), NULL, 0);
}

static int hand_sessions(struct hand_over *h)
{
	struct threads *ts = &h->service->threads;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		if (!worker_hand_over(w, hand_session, h) ||
		    !udp_sessions_hand_over(w, hand_udp_session, h))
			return h->fault;
	TAILQ_FOREACH(h->forward, &h->service->forwards.list, in_forwards)
		if (h->forward->state == FORWARD_ACTIVE)
			servers_visit(&h->forward->servers, hand_server, h);
	hand_put(&h->out, HAND_END, NULL, 0, 0, NULL, 0);
	return hand_flush(&h->out);
}

/* --- it is the other daemon's now --- */

/* R has the ids of sessions that the other daemon has no use for. */
static void hand_keep(struct hand_over *h, const struct hand_record *r)
{
	struct codec c = { .at = (uint8_t *)r->bytes, .end = (uint8_t *)r->bytes + r->len };
	struct threads *ts = &h->service->threads;

	while (c.end - c.at >= 8) {
		uint64_t id = codec_number(&c, 0, 8);

		for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++) {
			worker_keep(w, id);
			udp_sessions_keep(w, id);
		}
		h->sessions--;
	}
}

static void hand_give_away(struct hand_over *h)
{
	struct threads *ts = &h->service->threads;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++) {
		worker_give_away(w);
		udp_sessions_give_away(w);
		listeners_leave(w);
		h->kept += w->n_sessions;
	}
	atomic_store(&h->shared->grace_ms, UINT_MAX); /* their forwards say how long */
	atomic_store(&h->shared->handed_over, true);
}

static int hand_wait_for(struct hand_over *h, enum hand_kind kind, int ms)
{
	struct hand_record r;
	int e = hand_get(&h->out, ms, &r);

	return e ?: r.kind == kind ? 0 : -EPROTO;
}

/* All workers wait. */
static int hand_all(struct hand_over *h, uint64_t *ret_us)
{
	uint64_t began = clock_ns();
	struct hand_record taken = { .kind = HAND_NONE };
	int r = hand_sessions(h) ?: hand_get(&h->out, TAKEN_MS, &taken);

	if (!r && taken.kind != HAND_TAKEN)
		r = -EPROTO;
	if (!r) {
		hand_keep(h, &taken);
		hand_give_away(h);
	}
	*ret_us = (clock_ns() - began) / 1000;
	return r;
}

void hand_over(const struct actions *a, const struct control *c, int fd)
{
	struct hand_over h = {
		.actions = a, .service = a->service, .shared = a->service->shared, .out.fd = fd
	};
	struct forwards *all = &h.service->forwards;
	const struct listening *l;
	uint64_t us = 0;
	int r;

	hand_begin(&h);
	pthread_mutex_lock(&all->lock);
	LIST_FOREACH(l, &h.service->listening, in_service)
		hand_listening(&h, l);
	pthread_mutex_unlock(&all->lock);
	hand_put(&h.out, HAND_END, NULL, 0, 0, NULL, 0);
	r = hand_flush(&h.out);
	if (!r && control_wait(c, fd, READY_MS) <= 0)
		r = -ETIMEDOUT;
	r = r ?: hand_wait_for(&h, HAND_READY, 0);
	if (r) {
		log_warning("take-over: the other daemon has not come up: %s", strerror(-r));
		hand_close(&h.out);
		atomic_store(&h.shared->asked, false);
		return;
	}
	pthread_mutex_lock(&all->lock);
	hand_leave_kernel(&h);
	if (threads_pause(&h.service->threads, PAUSE_MS)) {
		r = hand_all(&h, &us);
		if (!r) {
			hand_put(&h.out, HAND_YOURS, NULL, 0, 0, NULL, 0);
			hand_flush(&h.out);
		}
		threads_resume(&h.service->threads);
	} else {
		r = -ETIMEDOUT;
	}
	pthread_mutex_unlock(&all->lock);
	hand_close(&h.out);
	atomic_store(&h.shared->hands_over, false);
	atomic_store(&h.shared->asked, !r);
	if (r) {
		log_warning("take-over: the other daemon has failed, and this one goes on: %s",
			    strerror(-r));
		return;
	}
	log_info("take-over: %u sessions are the other daemon's, after a pause of %.1f ms; %u that "
		 "it cannot take stay until they end",
		 h.sessions, (double)us / 1000, h.kept);
	loop_wake(h.service->main);
}
