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
#include "daemon/bundle.h"
#include "datapath/carrier_copy.h"
#include "relay/session_life.h"
#include "relay/session_record.h"
#include "relay/session_syn.h"
#include "relay/udp/udp_life.h"
#include "relay/udp/udp_record.h"

#define READY_MS 120000 /* for the other daemon to come up */
#define SEND_MS 5000
#define TAKEN_MS 5000 /* for it to take the sessions, which wait */
#define PAUSE_MS 2000 /* for the workers to come to their pause */
#define LEAVE_MS 500  /* for flows to leave the kernel */

struct hand_over {
	int fd; /* to the other daemon */
	struct service *service;
	struct shared *shared;
	struct bundle out;
	struct forward *forward; /* whose servers are sent */
	unsigned int sessions, kept;
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
	bundle_put(&h->out, HAND_BEGIN, buf, (size_t)(c.at - buf), 0, &pins, pins >= 0);
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
		bundle_put(&h->out, HAND_LISTEN, buf, (size_t)(c.at - buf), 0, fds, n_fds);
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
	size_t pending = r->flows[0].pending + r->flows[1].pending;

	session_record_code(&c, &copy);
	bytes = bundle_put(&h->out, HAND_SESSION, buf, (size_t)(c.at - buf), pending, fds,
			   r->open ? 2 : 1);
	if (!bytes)
		return false;
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
	h->sessions++;
	return bundle_put(&h->out, HAND_UDP_SESSION, buf, (size_t)(c.at - buf), 0,
			  &s->upstream->source.fd, 1);
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
	bundle_put(&h->out, HAND_SERVER, buf, (size_t)(c.at - buf), 0, NULL, 0);
}

/* False: there is no memory. */
static bool hand_sessions(struct hand_over *h)
{
	struct threads *ts = &h->service->threads;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		if (!worker_hand_over(w, hand_session, h) ||
		    !udp_sessions_hand_over(w, hand_udp_session, h))
			return false;
	TAILQ_FOREACH(h->forward, &h->service->forwards.list, in_forwards)
		if (h->forward->state == FORWARD_ACTIVE)
			servers_visit(&h->forward->servers, hand_server, h);
	return !h->out.lacks;
}

/* --- it is the other daemon's now --- */

static void hand_keep(struct hand_over *h, struct bundle *refused)
{
	struct threads *ts = &h->service->threads;
	struct hand_record r;

	while (bundle_get(refused, &r)) {
		struct codec c = { .at = (uint8_t *)r.bytes, .end = (uint8_t *)r.bytes + r.len };
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

/* Send what is gathered. */
static int hand_send(struct hand_over *h)
{
	int r = bundle_send(&h->out, h->fd, SEND_MS);

	bundle_free(&h->out, false);
	return r;
}

/* Wait for a bundle of the other daemon. */
static int hand_receive(struct hand_over *h, struct bundle *ret)
{
	return bundle_receive(ret, h->fd, TAKEN_MS);
}

/* All workers wait. */
static int hand_all(struct hand_over *h)
{
	struct bundle refused = { 0 };
	int r = hand_sessions(h) ? hand_send(h) : -ENOMEM;

	r = r ?: hand_receive(h, &refused);
	if (!r) {
		hand_keep(h, &refused);
		hand_give_away(h);
		hand_send(h);
	}
	bundle_free(&refused, true);
	return r;
}

/* What the other daemon needs to come up; then wait until it has. */
static int hand_introduce(struct hand_over *h, const struct control *c)
{
	struct forwards *all = &h->service->forwards;
	const struct listening *l;
	struct bundle none;
	int r;

	hand_begin(h);
	pthread_mutex_lock(&all->lock);
	LIST_FOREACH(l, &h->service->listening, in_service)
		hand_listening(h, l);
	pthread_mutex_unlock(&all->lock);
	r = hand_send(h);
	if (!r && control_wait(c, h->fd, READY_MS) <= 0)
		r = -ETIMEDOUT;
	r = r ?: hand_receive(h, &none);
	bundle_free(&none, true);
	return r;
}

void hand_over(const struct actions *a, const struct control *c, int fd)
{
	struct hand_over h = { .service = a->service, .shared = a->service->shared, .fd = fd };
	struct forwards *all = &h.service->forwards;
	uint64_t began = 0;
	int r = hand_introduce(&h, c);

	if (r) {
		log_warning("take-over: the other daemon has not come up: %s", strerror(-r));
		atomic_store(&h.shared->asked, false);
		return;
	}
	pthread_mutex_lock(&all->lock);
	hand_leave_kernel(&h);
	if (threads_pause(&h.service->threads, PAUSE_MS)) {
		began = clock_ns();
		r = hand_all(&h);
		threads_resume(&h.service->threads);
	} else {
		r = -ETIMEDOUT;
	}
	pthread_mutex_unlock(&all->lock);
	bundle_free(&h.out, false);
	atomic_store(&h.shared->hands_over, false);
	atomic_store(&h.shared->asked, !r);
	if (r) {
		log_warning("take-over: the other daemon has failed, and this one goes on: %s",
			    strerror(-r));
		return;
	}
	log_info("take-over: %u sessions are the other daemon's, after a pause of %.1f ms; %u that "
		 "it cannot take stay until they end",
		 h.sessions, (double)(clock_ns() - began) / NS_PER_MS, h.kept);
	loop_wake(h.service->main);
}
