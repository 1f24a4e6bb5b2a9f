// SPDX-License-Identifier: BSD-2-Clause
/* All of this runs on the thread of a worker, or before that thread starts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/minmax.h"
#include "datapath/icmp_send.h"
#include "datapath/tcp.h"
#include "datapath/graft/udp_graft.h"
#include "relay/admission.h"
#include "relay/udp/udp_activate.h"
#include "relay/udp/udp_admission.h"
#include "relay/udp/udp_errors.h"
#include "relay/udp/udp_life.h"
#include "relay/udp/udp_server.h"

#define OLD_MS 1000 /* between two looks at old sockets */
#define ERRORS_MOST 32
#define ROUNDS 4 /* the most looks for one event: other sockets have their turns */

/* LOCAL, of a message or an error that came by US, may have no port, or no address: set them. */
static void udp_complete(const struct udp_listen_socket *us, union client_addr *local)
{
	if (local->sa.sa_family == AF_UNSPEC)
		client_addr_set(local, &us->addr.sa);
	local->in.sin_port = addr_port(&us->addr); /* at the same place in sockaddr_in6 */
}

/* --- a datagram --- */

/* Begin the session of CLIENT to DESTINATION, if it may have one.  NULL: it may not. */
static struct udp_session *udp_begin(struct udp_listen_socket *us, const struct graft_tuple *tuple,
				     const struct udp_message *m, const union client_addr *client,
				     const union client_addr *destination)
{
	struct worker *w = us->worker;
	struct udp_session *s = NULL;
	char text[ADDR_STRLEN];
	uint64_t due_ms;
	enum cause why = CAUSE_ACCEPT_RATE;

	if (!admission_allows(w, us->forward, client))
		return NULL;
	if (bucket_take(&us->forward->accepts, 1, w->loop.now_ms, &due_ms))
		why = udp_admit(us, tuple, client);
	if (why == CAUSE_NONE) {
		why = udp_session_open(us, tuple, m, client, destination, &s);
		if (!s)
			admission_leave(w->shared, us->forward, client);
	}
	if (s)
		return s;
	count_add(&w->stats.errors[why], 1);
	log_cause(why, LOG_WARNING, "forward %s: a datagram of %s is dropped",
		  forward_name(us->forward->conf), client_addr_text(client, text, sizeof(text)));
	return NULL;
}

/*
 * M has come by US.  TOLD: the PROXY header in front of M, which names the client; NULL: the peer
 * is the client.
 */
static void udp_take(struct udp_listen_socket *us, const struct udp_message *m,
		     const struct proxy_header *told)
{
	const union client_addr *client = told ? &told->source : &m->peer;
	struct graft_tuple tuple;
	struct udp_session *s, *before = NULL;

	graft_tuple_set(&tuple, &m->peer.sa, &m->local.sa);
	s = udp_session_find(us->worker, &tuple, client);
	if (s && !us->old && udp_server_is_given_up(s)) {
		udp_session_end(s, CAUSE_UPSTREAM_LOST);
		udp_settle(s);
		before = s;
		s = NULL;
	}
	/* a flow that another relay had may wait for its adoption: begin no second session */
	if (!s && !us->old &&
	    !udp_graft_is_held(graft_table_udp(us->worker->shared->grafts), &tuple))
		s = udp_begin(us, &tuple, m, client, told ? &told->destination : &m->local);
	if (s && before)
		udp_server_succeed(s, before);
	if (s)
		udp_session_take(s, us, m);
	else if (us->old) /* as if nobody listened */
		icmp_tell(&m->peer, &m->local, ECONNREFUSED, 0);
}

/* The same with a client that a header names, or that has sent none. */
static void udp_take_behind(struct udp_listen_socket *us, const struct udp_message *m,
			    const struct proxy_header *told)
{
	const union client_addr *client = told ? &told->source : &m->peer;

	if (acl_allows(&us->forward->conf->acl_behind, &client->sa))
		udp_take(us, m, told);
	else
		count_add(&forward_stats(us->forward, us->worker->index)->denied, 1);
}

/* Each datagram of M begins with a PROXY header. */
static void udp_take_proxied(struct udp_listen_socket *us, const struct udp_message *m)
{
	size_t size = smaller(m->segment, m->len);

	for (size_t at = 0; at < m->len; at += size) {
		struct udp_message one = *m;
		struct proxy_header header;
		char text[ADDR_STRLEN];
		const char *why;

		one.data += at;
		one.len = smaller(size, m->len - at);
		if (proxy_protocol_parse(one.data, one.len, &header, &why)) {
			if (us->forward->conf->proxy_in &&
			    !proxy_protocol_begins(one.data, one.len)) {
				udp_take_behind(us, &one, NULL);
				continue;
			}
			count_add(&us->worker->stats.errors[CAUSE_HEADER_BAD], 1);
			log_cause(CAUSE_HEADER_BAD, LOG_NOTICE,
				  "forward %s: a datagram from %s is dropped: %s",
				  forward_name(us->forward->conf),
				  client_addr_text(&m->peer, text, sizeof(text)),
				  why ?: "its PROXY header is cut off");
			continue;
		}
		one.data += header.size;
		one.len -= header.size;
		if (header.has_addresses || us->forward->conf->proxy_in)
			udp_take_behind(us, &one, header.has_addresses ? &header : NULL);
		else
			udp_take(us, &one, NULL);
	}
}

/* --- events --- */

/* Errors about answers to clients.  The kernel may report an error to any worker. */
static void udp_take_client_errors(struct udp_listen_socket *us)
{
	struct udp_session *s;
	struct udp_error e;

	for (int i = 0; i < ERRORS_MOST && udp_next_error(us->source.fd, &e); i++) {
		udp_complete(us, &e.local);
		s = udp_errors_of_client(us->worker, &e);
		if (s)
			udp_settle(s);
	}
	tcp_take_error(us->source.fd);
}

static void udp_on_clients(struct source *source, uint32_t events)
{
	struct udp_listen_socket *us = container_of(source, struct udp_listen_socket, source);
	struct worker *w = us->worker;
	char text[ADDR_STRLEN];
	int n, round = 0;
	bool wait;

	if (events & EPOLLERR)
		udp_take_client_errors(us);
	do {
		udp_activate_before_read(us);
		n = udp_receive(w->udp->batch, us->source.fd);
		for (int i = 0; i < n; i++) {
			struct udp_message *m = udp_batch_at(w->udp->batch, (unsigned int)i);

			udp_complete(us, &m->local);
			if (!m->peer.in.sin_port) /* at the same place in sockaddr_in6 */
				log_limited(LOG_NOTICE,
					    "forward %s: a datagram from %s is dropped: its source "
					    "port is 0, so it cannot be answered",
					    forward_name(us->forward->conf),
					    client_addr_text(&m->peer, text, sizeof(text)));
			else if (us->forward->conf->proxy_protocol & PROXY_RECEIVE)
				udp_take_proxied(us, m);
			else
				udp_take(us, m, NULL);
		}
		if (n < 0) /* an error of an earlier answer */
			udp_take_client_errors(us);
		wait = udp_activate_after_read(us, n >= 0 && n < UDP_BATCH);
	} while (++round < ROUNDS && (n < 0 || n == UDP_BATCH || wait));
}

/* --- listeners --- */

/*
 * Close the sockets at which no forward listens, and which no session needs.  All workers keep
 * their sockets of a forward until its last session has ended: the kernel's choice of a socket
 * depends on the number of sockets.
 */
static void udp_close_old(struct timer *timer)
{
	struct udp_worker *u = container_of(timer, struct udp_worker, old);
	struct udp_listen_socket *us, *next;

	for (us = LIST_FIRST(&u->sockets); us; us = next) {
		struct loop *loop = &us->worker->loop;

		next = LIST_NEXT(us, in_worker);
		if (!us->old || us->refs || atomic_load(&us->forward->sessions)) {
			if (us->old)
				timer_set(loop, timer, loop->now_ms + OLD_MS);
			continue;
		}
		LIST_REMOVE(us, in_worker);
		loop_watch(loop, &us->source, 0, false);
		close(us->source.fd);
		atomic_fetch_sub(&us->forward->old_sockets, 1);
		free(us);
	}
}

/* The old socket that is bound to A, so that its sessions stay; or a new one, not open yet. */
static struct udp_listen_socket *udp_find_or_add_socket(struct worker *w, const struct addr *a)
{
	struct udp_listen_socket *us;

	LIST_FOREACH(us, &w->udp->sockets, in_worker)
		if (us->old && addr_equal(&us->addr, a))
			break;
	if (us) {
		atomic_fetch_sub(&us->forward->old_sockets, 1);
		return us;
	}
	us = calloc(1, sizeof(*us));
	if (!us)
		return NULL;
	us->source = (struct source){ .handle = udp_on_clients, .fd = -1 };
	us->worker = w;
	us->addr = *a;
	LIST_INSERT_HEAD(&w->udp->sockets, us, in_worker);
	return us;
}

struct udp_listen_socket *udp_listener_start(struct worker *w, struct forward *f,
					     const struct addr *a, int fd)
{
	struct udp_listen_socket *us = udp_find_or_add_socket(w, a);
	int r = -ENOMEM;

	if (us && us->source.fd < 0)
		us->source.fd = fd;
	else
		close(fd);
	if (us) {
		w->udp->old.fire = udp_close_old;
		us->forward = f;
		us->old = false;
		r = loop_watch(&w->loop, &us->source, EPOLLIN, true);
	}
	if (r)
		log_error("forward %s: worker %u takes no datagrams: %s", forward_name(f->conf),
			  w->index, strerror(-r));
	return us;
}

void udp_listener_end(struct udp_listen_socket *us)
{
	struct worker *w = us->worker;

	us->old = true;
	atomic_fetch_add(&us->forward->old_sockets, 1);
	timer_set(&w->loop, &w->udp->old, w->loop.now_ms); /* once for all that end now */
}
