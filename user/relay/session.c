// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_needed.h"
#include "daemon/session_log.h"
#include "datapath/carrier.h"
#include "datapath/carrier_sockmap.h"
#include "datapath/tcp.h"
#include "relay/limits.h"
#include "relay/session_connect.h"
#include "relay/session_flow.h"
#include "relay/session_header.h"
#include "relay/session_part.h"
#include "relay/session_record.h"
#include "relay/session_slots.h"
#include "relay/session_wait.h"

/*
 * A review takes some 12 system calls and a fence for each flow.  So in one second a worker has so
 * many sessions judged again, which takes it about a millisecond, and looks at so many slot pairs
 * to find them.
 */
#define REVIEWS_AT_ONCE 64
#define REVIEW_LOOKS 4096

SYSCALLS_NEEDED(
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_ERROR)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_LINGER)),
	SYSCALL(connect), /* to nowhere: see session_arm_reset() */
	SYSCALL(close));

enum cause session_cause(unsigned int side, int error)
{
	switch (error) {
	case ECONNRESET:
	case EPIPE:
	case ENOTCONN:
	case 0:
		return side == CLIENT ? CAUSE_CLIENT_RESET : CAUSE_UPSTREAM_RESET;
	case ENOMEM:
	case ENOBUFS:
		return CAUSE_NO_MEMORY;
	default:
		return side == CLIENT ? CAUSE_CLIENT_LOST : CAUSE_UPSTREAM_LOST;
	}
}

uint64_t session_kernel_bytes(const struct session *s, unsigned int dir)
{
	if (s->pair == NO_PAIR)
		return 0;
	return sockmap_redirected(s->worker->shared->kernel, s->pair * 2 + dir, &s->flows[dir]);
}

uint64_t session_bytes(const struct session *s, unsigned int dir)
{
	return s->flows[dir].user_out + session_kernel_bytes(s, dir);
}

/* --- the worker's list --- */

static void put_into(struct session *s, struct session **list)
{
	s->next = *list;
	if (s->next)
		s->next->prev = &s->next;
	s->prev = list;
	*list = s;
}

static void take_out(struct session *s)
{
	*s->prev = s->next;
	if (s->next)
		s->next->prev = s->prev;
}

static void enlist(struct session *s)
{
	put_into(s, &s->worker->sessions);
	s->worker->n_sessions++;
}

static void unlist(struct session *s)
{
	take_out(s);
	s->worker->n_sessions--;
}

void session_set_apart(struct session *s, enum cause cause)
{
	take_out(s);
	put_into(s, &s->worker->ending);
	s->end_cause = (uint8_t)cause;
}

/* --- the end --- */

void session_arm_reset(int fd)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };
	struct sockaddr none = { .sa_family = AF_UNSPEC };

	/*
	 * a BPF program of the cgroup, say, may refuse any option; to disconnect sends RST as well
	 */
	if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)))
		(void)connect(fd, &none, sizeof(none)); /* if that fails too, nothing is left */
}

void session_set_nodelay(struct session *s)
{
	if (s->nodelay_due)
		tcp_set_nodelay(s->sides[UPSTREAM].fd);
	s->nodelay_due = false;
}

void session_close_side(struct session *s, unsigned int which, bool rst)
{
	struct source *side = &s->sides[which];

	if (side->fd < 0)
		return;
	if (rst)
		session_arm_reset(side->fd);
	/*
	 * close(2) takes it out of epoll, and sends FIN or RST: no other process holds the file.
	 * Nothing is forked while there are sessions, and a descriptor of the privileged process is
	 * used only once that has closed its copy (PRIVILEGED_CLOSED).
	 */
	side->registered = false;
	close(side->fd);
	side->fd = -1;
}

/* Because of END: a cause, or SESSION_FINISHED. */
static void session_end(struct session *s, bool rst, unsigned int end)
{
	struct worker *w = s->worker;
	struct forward_stats *fs = forward_stats(s->forward, w->index);
	bool admitted = s->state != SESSION_HEADER; /* it is known whose session it is */
	uint64_t kernel[2];

	for (unsigned int dir = 0; dir < 2; dir++)
		kernel[dir] = session_kernel_bytes(s, dir);
	session_log_ended(w->shared->session_log, s, kernel, end);
	for (unsigned int dir = 0; dir < 2; dir++) {
		count_add(&fs->bytes[dir], session_bytes(s, dir));
		count_add(&w->stats.carrier_bytes[CARRIER_SOCKMAP], kernel[dir]);
		carrier_release(&s->flows[dir], &w->pool);
	}
	count_add(&fs->finished, 1);
	session_connect_end(s);
	session_pace_stop(s);
	session_close_side(s, CLIENT, rst);
	session_close_side(s, UPSTREAM, rst);
	session_give_slots(s, true);
	timer_cancel(&w->loop, &s->timer);

	session_set_state(s, SESSION_DEAD);
	unlist(s);
	s->next = w->dead;
	w->dead = s;
	if (admitted)
		admission_leave(w->shared->admission, s->forward, &s->client.sa);
	else
		admission_cancel(w->shared->admission, s->forward);
}

void session_finish(struct session *s)
{
	log_debug("session %llu: finished", (unsigned long long)s->id);
	session_end(s, false, SESSION_FINISHED);
}

void session_reset(struct session *s, enum cause cause)
{
	if (s->state == SESSION_DEAD)
		return;
	log_debug("session %llu: reset: %s", (unsigned long long)s->id, cause_name(cause));
	count_add(&s->worker->stats.errors[cause], 1);
	session_end(s, true, cause);
}

void session_reap(struct worker *w)
{
	while (w->dead) {
		struct session *s = w->dead;

		w->dead = s->next;
		free(s->told);
		free(s->pace);
		free(s->idle);
		addr_list_put(s->addrs);
		free(s);
	}
	session_connect_reap(w);
}

/* --- events --- */

static int socket_error(int fd)
{
	socklen_t len = sizeof(int);
	int error = 0;

	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
	return error;
}

static void on_event(struct session *s, unsigned int which, uint32_t events)
{
	struct source *source = &s->sides[which];
	struct flow *f = &s->flows[which];

	if (s->state == SESSION_DEAD)
		return;
	if (events & ~(uint32_t)EPOLLOUT)
		f->quiet = false;
	if (s->state == SESSION_CONNECTING && which == UPSTREAM) {
		session_connect_answered(s, 0, events);
		if (s->state != SESSION_OPEN) {
			session_update(s);
			return;
		}
	}
	/* EPOLLERR is RST, a timeout, or a hard error of the kernel's worker: bytes may be gone */
	if (events & EPOLLERR) {
		session_part(s, which, session_cause(which, socket_error(source->fd)));
		session_update(s);
		return;
	}
	if (s->state == SESSION_HEADER) {
		session_header_look(s, events & (EPOLLRDHUP | EPOLLHUP));
		session_update(s);
		return;
	}
	if (s->state != SESSION_OPEN)
		return;
	/* a write finds out whether the peer is gone; that there is room may be told unasked */
	if (events & EPOLLHUP ||
	    (events & EPOLLOUT && flow_wants(&s->flows[!which]) & FLOW_WANT_WRITE))
		session_flow_run(s, !which, false);
	if (s->state == SESSION_OPEN && events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP))
		session_flow_run(s, which, events & (EPOLLRDHUP | EPOLLHUP));
	if (events & EPOLLPRI) /* a read has ended before the urgent byte, whatever is behind it */
		f->quiet = false;
	session_update(s);
}

static void on_client(struct source *source, uint32_t events)
{
	on_event((struct session *)((char *)source - offsetof(struct session, sides[CLIENT])),
		 CLIENT, events);
}

static void on_upstream(struct source *source, uint32_t events)
{
	on_event((struct session *)((char *)source - offsetof(struct session, sides[UPSTREAM])),
		 UPSTREAM, events);
}

static void on_timer(struct timer *timer)
{
	struct session *s = (struct session *)((char *)timer - offsetof(struct session, timer));
	uint64_t now = s->worker->loop.now_ms;

	if (s->state == SESSION_HEADER)
		session_header_timer(s);
	else if (s->state == SESSION_CONNECTING)
		session_connect_timer(s);
	else if (s->state == SESSION_PARTING)
		session_part_timer(s);
	for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++) {
		struct flow *f = &s->flows[dir];

		if (flow_wants(f) & FLOW_WANT_TIMER && f->due_ms && f->due_ms <= now) {
			f->due_ms = 0;
			session_flow_run(s, dir, false);
		}
	}
	session_idle_timer(s);
	session_update(s);
}

void session_kernel_event(struct worker *w, const struct culvert_event *ev)
{
	struct session *s = w->owners[ev->slot / 2];

	if (!s || s->state != SESSION_OPEN)
		return;
	if ((uint16_t)kernel_ctl(w->shared->kernel, ev->slot)->epoch != ev->epoch)
		return;
	session_flow_event(s, ev->slot % 2, ev->kind);
	session_update(s);
}

/*
 * To let a flow leave costs some 12 system calls.  The program tells of those that run; these are
 * the quiet ones, of which more go the next time.
 */
#define SWEEP_LEAVES 256

void session_sweep(struct worker *w)
{
	struct session *s = w->sessions, *next;
	struct kernel *k = w->shared->kernel;
	unsigned int leaves = SWEEP_LEAVES;

	for (; s; s = next) {
		next = s->next;
		for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++) {
			const volatile struct culvert_stat *st;

			if (s->pair == NO_PAIR || s->flows[dir].phase != FLOW_KERNEL)
				continue;
			st = kernel_stat(k, s->pair * 2 + dir);
			if ((uint32_t)st->dropped != s->flows[dir].base_dropped)
				session_flow_event(s, dir, CULVERT_EVENT_LOST);
			else if (st->passed != s->flows[dir].credit)
				session_flow_event(s, dir, CULVERT_EVENT_PASSED);
			else if (sockmap_closed(k, s->pair * 2 + dir))
				session_flow_event(s, dir, CULVERT_EVENT_SOFT);
			else if (leaves && kernel_is_charged(k, s->pair * 2 + dir) &&
				 kernel_memory_short(k) && leaves--)
				session_flow_event(s, dir, CULVERT_EVENT_MEMORY);
		}
		session_update(s);
	}
}

void session_review(struct worker *w)
{
	unsigned int pairs = kernel_pairs_total(w->shared->kernel);
	unsigned int looks = pairs < REVIEW_LOOKS ? pairs : REVIEW_LOOKS, n = 0;

	for (; looks && n < REVIEWS_AT_ONCE; looks--) {
		struct session *s = w->owners[w->review_at];

		w->review_at = (w->review_at + 1) % pairs;
		if (!s || s->state != SESSION_OPEN || !session_flow_is_due(s))
			continue;
		session_flow_review(s);
		session_update(s);
		n++;
	}
}

unsigned int session_follow_engines(struct worker *w)
{
	struct session *s = w->sessions, *next;
	unsigned int n = 0;

	for (; s; s = next) {
		next = s->next;
		for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++)
			n += !session_flow_follow(s, dir);
		session_update(s);
	}
	return n;
}

/* --- the beginning --- */

/* With what malloc(3) adds, a session that is idle takes half a kilobyte. */
_Static_assert(sizeof(struct session) <= 488, "put what few sessions need apart");

int session_open(struct worker *w, struct forward *f, int fd, const struct sockaddr *client)
{
	struct session *s;
	int r;

	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->worker = w;
	s->forward = f;
	client_addr_set(&s->client, client);
	r = worker_reserve_timer(w) ?: session_connect_expect(s) ?: session_header_expect(s);
	if (r) {
		session_connect_forget(s);
		free(s);
		return r;
	}
	s->id = atomic_fetch_add(&w->shared->last_id, 1) + 1;
	s->born_ms = w->loop.now_ms;
	s->pair = NO_PAIR;
	s->timer.fire = on_timer;
	s->tcp = client->sa_family != AF_UNIX && !endpoint_is_unix(&f->conf->upstream);
	s->sides[CLIENT] = (struct source){ .handle = on_client, .fd = fd };
	s->sides[UPSTREAM] = (struct source){ .handle = on_upstream, .fd = -1 };

	enlist(s);
	count_add(&forward_stats(f, w->index)->accepted, 1);

	if (s->state == SESSION_HEADER)
		session_header_look(s, false);
	else
		session_connect(s);
	session_update(s);
	return 0;
}
