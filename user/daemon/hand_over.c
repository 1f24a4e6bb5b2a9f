// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * This daemon serves its sessions until the next one has come up.  Then all workers wait, each session
 * is packed, and its descriptors are sent; both daemons have them open.  Nothing has changed here so
 * far, so if the other daemon fails, the workers go on.  When the other daemon has said that it has
 * taken all, this one closes its descriptors without a word to any end.
 *
 * Grafted sessions stay in the pinned maps if the next daemon has the same ones.  Otherwise they go
 * as records of an export, and this daemon's packet programs carry them until the other's do.
 *
 * systemd's descriptor store gets one descriptor: a socket with all messages, which nobody has read.
 */
#include "daemon/hand_over.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "daemon/grafted.h"
#include "relay/session_life.h"
#include "relay/udp/udp_session.h"

SYSCALLS_ALLOWED(SYSCALL_IF(PART_NOTIFY, socketpair, SYSCALL_ARG(0, AF_UNIX)),
		 SETSOCKOPT(SOL_SOCKET, SO_SNDBUF));

#define READY_MS 120000 /* for the other daemon to come up */
#define LEAVE_MS 500    /* for flows to leave the kernel */

struct hand_over {
	int fd; /* to the other daemon */
	bool stores;
	uint64_t pins; /* of the maps of this daemon */
	bool alone; /* the other daemon does not graft: the packet programs go on without a daemon */
	const struct actions *actions;
	struct service *service;
	struct shared *shared;
	struct handing handing;
	unsigned int changes;     /* of the configuration, when the other daemon read its own */
	int error;                /* of a worker */
	unsigned int moved, kept; /* sessions */
};

/* --- what the other daemon needs to come up --- */

static void hand_socket(struct bundle *b, int fd)
{
	if (fd >= 0)
		bundle_put(b, &(struct record){ .kind = HANDED_SOCKET, .fds = &fd, .n_fds = 1 });
}

static void hand_order(struct bundle *b, const struct upstream_order *o)
{
	const char *const texts[] = { o->forward, o->server, o->words ?: "" };
	size_t sizes[] = { strlen(texts[0]) + 1, strlen(texts[1]) + 1, strlen(texts[2]) + 1 };
	uint32_t adds = o->words != NULL;
	uint8_t *more = bundle_put(b, &(struct record){ .kind = HANDED_ORDER,
							.at = (uint8_t *)&adds,
							.size = sizeof(adds),
							.n_more = sizes[0] + sizes[1] + sizes[2] });

	for (int i = 0; more && i < 3; more += sizes[i++])
		memcpy(more, texts[i], sizes[i]);
}

/* Under the lock of forwards. */
static int hand_sockets(struct hand_over *h)
{
	const struct upstream_orders *orders = &h->service->orders;
	struct bundle b = { 0 };
	const struct listening *l;
	int r;

	h->changes = h->service->changes;
	for (size_t i = 0; i < orders->n; i++)
		hand_order(&b, &orders->list[i]);
	if (h->shared->grafts && !probe_has_failed(h->shared->probe, ENGINE_GRAFT))
		bundle_put(&b, &(struct record){ .kind = HANDED_GRAFTS });
	LIST_FOREACH(l, &h->service->listening, in_service)
		for (unsigned int i = 0; i < (l->shared ? 1 : l->n_workers); i++)
			if (!l->given || !h->stores) /* systemd gives its own sockets */
				hand_socket(&b, l->at[i].udp ? l->at[i].udp->source.fd :
							       l->at[i].source.fd);
	if (!h->stores) {
		hand_socket(&b, control_listener(h->actions->control));
		hand_socket(&b, control_listener(h->actions->metrics));
	}
	r = bundle_send(&b, h->fd);
	bundle_free(&b);
	return r;
}

/* The other daemon has come up, and says which forwards it has: mark them. */
static int hand_learn_forwards(struct hand_over *h)
{
	uint64_t its;
	struct bundle b;
	struct record r;
	struct forward *f;
	int e = bundle_receive(&b, h->fd);

	while (!e && bundle_get(&b, &r)) {
		record_read(&r, &its, sizeof(its));
		h->handing.same = !h->shared->grafts || (h->pins && its == h->pins);
		h->alone = !its;
		TAILQ_FOREACH(f, &h->service->forwards.list, in_forwards) /* also replaced ones */
			f->leaves = f->leaves || (r.kind == HANDED_FORWARD && f->tag == r.of);
	}
	bundle_free(&b);
	return e;
}

static void hand_mark_all(struct hand_over *h, bool leaves)
{
	struct forward *f;

	TAILQ_FOREACH(f, &h->service->forwards.list, in_forwards)
		f->leaves = leaves;
}

/* --- sessions --- */

static void hand_leave(struct worker *w, const void *arg)
{
	**(unsigned int *const *)arg += worker_leave_kernel(w) + worker_follow_engines(w);
}

/*
 * Let flows leave the kernel, whose queues cannot be handed over, while the workers run.  A flow
 * whose target takes nothing stays, with its session.  Grafted sessions of forwards that stay return.
 */
static void hand_leave_kernel(struct hand_over *h)
{
	uint64_t end_ms = clock_ms() + LEAVE_MS;
	unsigned int n, *to = &n;
	struct forward *f;

	atomic_store(&h->shared->hands_over, true);
	TAILQ_FOREACH(f, &h->service->forwards.list, in_forwards)
		if (!f->leaves)
			f->engine_before = atomic_exchange(&f->engine, ENGINE_COPY);
	do {
		n = 0;
		threads_call(&h->service->threads, hand_leave, &to);
	} while (n && clock_ms() < end_ms && poll(NULL, 0, 1) <= 0);
}

static void hand_grafts(const struct hand_over *h, struct bundle *b)
{
	uint8_t buf[RECORD_MAX];
	struct graft_record r;

	for (struct grafted g = { 0 }; grafted_next(h->shared->grafts, &g); g.at++) {
		if (g.state != GRAFTED_ACTIVE || g.udp)
			continue;
		grafted_record(&g, &r);
		bundle_put(b, &(struct record){ .kind = HANDED_GRAFT,
						.of = (uint32_t)h->pins,
						.at = buf,
						.size = record_pack(&r, clock_ns(), buf) });
	}
}

static int hand_sessions(struct hand_over *h)
{
	struct threads *ts = &h->service->threads;
	struct bundle *b = &h->handing.now;
	struct forward *f;

	TAILQ_FOREACH(f, &h->service->forwards.list, in_forwards)
		if (f->leaves && f->state == FORWARD_ACTIVE)
			servers_hand_over(&f->servers, f->tag, b);
	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		worker_hand_over(w, &h->handing);
	if (h->shared->grafts && (h->stores || !h->handing.same))
		hand_grafts(h, b);
	return (h->stores ? 0 : bundle_send(&h->handing.changed, h->fd)) ?: bundle_send(b, h->fd);
}

/* An empty bundle comes, or goes. */
static int hand_word(const struct hand_over *h, bool sends)
{
	struct bundle b = { 0 };
	int r = sends ? bundle_send(&b, h->fd) : bundle_receive(&b, h->fd);

	bundle_free(&b);
	return r;
}

/* The thread of W sends, since its descriptors may be closed afterwards. */
static void hand_worker_ahead(struct worker *w, const void *arg)
{
	struct hand_over *h = *(struct hand_over *const *)arg;
	struct bundle *b = &h->handing.ahead[w->index];

	worker_hand_ahead(w, &h->handing, b);
	if (b->len && !h->error)
		h->error = bundle_send(b, h->fd);
}

/* Most sessions are silent, and need not wait until the other daemon has made them. */
static int hand_ahead(struct hand_over *h)
{
	h->handing.last_id = atomic_load(&h->shared->last_id);
	threads_call(&h->service->threads, hand_worker_ahead, &h);
	return h->error ?: hand_word(h, true) ?: hand_word(h, false);
}

/* --- all is the other daemon's now --- */

/* How long sessions may run that the other daemon cannot take, in ms. */
static unsigned int hand_grace(const struct hand_over *h)
{
	unsigned int most = 0;
	struct forward *f;

	TAILQ_FOREACH(f, &h->service->forwards.list, in_forwards)
		if (f->sessions && !h->stores) {
			most = (unsigned int)larger(most, f->conf->drain_timeout_ms ?: UINT_MAX);
			log_write(LOG_NOTICE,
				  "take-over: forward %s: %u sessions stay until they end",
				  forward_name(f->conf), f->sessions);
		}
	return most;
}

/* No worker accepts any more, and the maps are free.  Clients that wait are the next daemon's. */
static void hand_leave_listeners(struct hand_over *h)
{
	struct threads *ts = &h->service->threads;
	struct listening *l;

	h->moved = atomic_load(&h->shared->live);
	LIST_FOREACH(l, &h->service->listening, in_service)
		l->given = l->given || l->forward->leaves;
	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		listeners_end(w);
	/* systemd's next daemon finds the maps, and takes them if they are of its layout */
	atomic_store(&h->shared->handed_over,
		     h->handing.same || h->alone ? HANDED_OVER_MAPS : HANDED_OVER);
	if (h->shared->grafts && h->handing.same && !h->stores)
		graft_table_give_up(h->shared->grafts);
}

static void hand_give_away(struct hand_over *h)
{
	struct threads *ts = &h->service->threads;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		worker_give_away(w);
	h->kept = atomic_load(&h->shared->live);
	atomic_store(&h->shared->grace_ms, hand_grace(h));
}

/* The other daemon has taken all: it need not wait until this one has closed its sockets. */
static void hand_part(struct hand_over *h)
{
	hand_leave_listeners(h);
	if (h->handing.same && !h->stores)
		hand_word(h, true);
	hand_give_away(h);
	/* sockets of grafted sessions were in the way of the other's; its programs come next */
	if (!h->handing.same && !hand_word(h, true))
		poll(&(struct pollfd){ .fd = h->fd, .events = POLLIN }, 1, BUNDLE_MS);
}

/* The store keeps FD, whose other end is closed soon.  -errno. */
static int hand_store(int fd)
{
	int r = sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDPOLL=0\nFDNAME=" STORE_NAME, &fd, 1);

	return r > 0 ? 0 : r ?: -ENOTCONN;
}

/* All workers wait.  STORED: for the store. */
static int hand_while_waiting(struct hand_over *h, int stored)
{
	uint64_t began_ns = clock_ns();
	int r = hand_sessions(h) ?: h->stores ? hand_store(stored) : hand_word(h, false);

	if (!r) {
		hand_part(h);
		log_info("take-over: %u sessions are handed over, %u stay; the workers have "
			 "waited for %.1f ms",
			 h->moved - h->kept, h->kept, (double)(clock_ns() - began_ns) / NS_PER_MS);
	}
	return r;
}

/* From the moment at which the other daemon has come up. */
static int hand_all(struct hand_over *h, int stored)
{
	struct forward *f;
	int r;

	if (h->shared->ends || atomic_load(&h->shared->handed_over))
		return -ESHUTDOWN;
	if (h->changes != h->service->changes) /* the other daemon lacks the change */
		return -ESTALE;
	h->handing.ahead = calloc(h->service->threads.n, sizeof(struct bundle));
	if (!h->handing.ahead)
		return -ENOMEM;
	loop_share_descriptors();
	hand_leave_kernel(h);
	r = h->stores ? 0 : hand_ahead(h);
	if (!r) {
		threads_pause(&h->service->threads);
		r = hand_while_waiting(h, stored);
		threads_resume(&h->service->threads);
	}
	TAILQ_FOREACH(f, &h->service->forwards.list, in_forwards)
		if (r && !f->leaves)
			atomic_store(&f->engine, f->engine_before);
	atomic_store(&h->shared->hands_over, false);
	for (unsigned int i = 0; i < h->service->threads.n; i++) {
		h->handing.ahead[i].fds_at = 0; /* its descriptors are those of sessions */
		bundle_free(&h->handing.ahead[i]);
	}
	free(h->handing.ahead);
	bundle_free(&h->handing.changed);
	bundle_free(&h->handing.now);
	return r;
}

/* Let no message wait for room in the socket at FD. */
static void hand_make_room(int fd)
{
	const int room = INT_MAX / 4;

	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
}

/* The other daemon would otherwise hold this one for dead, should this one end soon. */
static void hand_refuse(const struct hand_over *h, const char *why)
{
	struct bundle b = { 0 };

	hand_make_room(h->fd);
	bundle_put(&b, &(struct record){ .kind = HANDED_REFUSED,
					 .at = (const uint8_t *)why,
					 .size = strlen(why) + 1 });
	bundle_send(&b, h->fd);
	bundle_free(&b);
}

static int hand_end(struct hand_over *h, int r)
{
	const char *why = r == -ESTALE     ? "the configuration has changed meanwhile" :
			  r == -ESHUTDOWN  ? "this daemon is told to end" :
			  r == -EPIPE      ? "the other daemon has ended" :
			  r == -ECONNRESET ? "the other daemon has ended" :
			  r == -ETIMEDOUT  ? "the other daemon has not answered in time" :
					     strerror(-r);

	if (r) {
		hand_mark_all(h, false);
		log_warning("take-over: nothing is handed over: %s", why);
	}
	if (r && !h->stores)
		hand_refuse(h, why);
	loop_wake(h->service->main);
	return r;
}

const char *hand_over_hindrance(const struct actions *a)
{
	return atomic_load(&a->service->shared->handed_over) ? "another daemon has all by now" :
	       a->service->hands_over                        ? "another take-over is under way" :
	       a->service->shared->ends                      ? "this daemon is told to end" :
							       NULL;
}

static struct hand_over hand_begin(const struct actions *a)
{
	struct hand_over h = { .actions = a, .service = a->service, .shared = a->service->shared };

	h.pins = h.shared->grafts ? graft_table_pins(h.shared->grafts) : 0;
	return h;
}

void hand_over(const struct actions *a, const struct control *c, int fd)
{
	struct hand_over h = hand_begin(a);
	pthread_mutex_t *lock = &h.service->forwards.lock;
	int r;

	h.fd = fd;
	pthread_mutex_lock(lock);
	r = hand_sockets(&h);
	pthread_mutex_unlock(lock);
	if (!r) {
		r = control_wait(c, fd, READY_MS);
		r = r > 0 ? 0 : r ?: -ETIMEDOUT;
	}
	pthread_mutex_lock(lock);
	r = r ?: hand_learn_forwards(&h) ?: hand_all(&h, -1);
	hand_end(&h, r);
	h.service->hands_over = false;
	pthread_mutex_unlock(lock);
}

int hand_over_store(const struct actions *a)
{
	struct hand_over h = hand_begin(a);
	int fds[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return -errno;
	hand_make_room(fds[0]);
	h.stores = h.handing.same = true; /* if it has not, it takes records of them */
	h.fd = fds[0];
	hand_mark_all(&h, true);
	r = hand_sockets(&h) ?: hand_all(&h, fds[1]);
	close(fds[0]);
	close(fds[1]);
	return hand_end(&h, r);
}
