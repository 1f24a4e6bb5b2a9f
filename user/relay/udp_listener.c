// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the kernel gives each worker's socket the datagrams of the clients whose
 * sessions that worker has (udp_spread()).  What comes to another one all the same is passed on to
 * its owner as a parcel: at the start, when a reload adds sockets to an address that has some, and
 * from a socket that systemd has opened, which all workers read.
 */
#include "relay/udp_listener.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/minmax.h"
#include "datapath/icmp.h"
#include "datapath/tcp.h"
#include "relay/admission.h"

#define IN_MOST 32      /* messages at a time */
#define ROUNDS 4        /* looks for an event, so that others have their turns */
#define PARCELS_MAX 256 /* that wait for a worker */

/* A message, or an error, for another worker. */
struct udp_parcel {
	struct udp_parcel *next;
	struct udp_message message; /* its data are behind the parcel */
	struct udp_error error;     /* errno 0: there is none */
};

static union client_addr address_of(const struct addr *a)
{
	union client_addr c;

	client_addr_set(&c, (const struct sockaddr *)&a->ss);
	return c;
}

static struct addr addr_of(const union client_addr *a)
{
	struct addr r = { .len = a->sa.sa_family == AF_INET6 ? sizeof(a->in6) : sizeof(a->in) };

	memcpy(&r.ss, a, r.len);
	return r;
}

/* What LOCAL, of a message or an error that came by US, lacks: the port; or all. */
static void complete(const struct udp_socket *us, union client_addr *local)
{
	struct addr a = local->sa.sa_family == AF_UNSPEC ? us->addr : addr_of(local);

	addr_set_port(&a, addr_port(&us->addr));
	*local = address_of(&a);
}

/* --- other workers --- */

static void pass_on(struct worker *w, unsigned int owner, const struct udp_message *m,
		    const struct udp_error *e)
{
	struct udp_worker *u = w->shared->workers[owner].udp;
	struct udp_parcel *p = u ? malloc(sizeof(*p) + m->len) : NULL;
	bool room = false;

	if (!p)
		return;
	*p = (struct udp_parcel){ .message = *m };
	if (e)
		p->error = *e;
	p->message.data = (uint8_t *)(p + 1);
	memcpy(p + 1, m->data, m->len);
	pthread_mutex_lock(&u->lock);
	if (u->n_parcels < PARCELS_MAX) {
		room = true;
		*u->last = p;
		u->last = &p->next;
		u->n_parcels++;
	}
	pthread_mutex_unlock(&u->lock);
	if (!room) {
		count_add(&w->stats.errors[CAUSE_SEND_BUFFER], udp_datagrams(m));
		free(p);
		return;
	}
	loop_wake(&w->shared->workers[owner].loop);
}

/* --- a datagram --- */

static bool is_allowed(const struct udp_socket *us, const union client_addr *client)
{
	const struct forward *f = us->on->forward;
	char text[ADDR_STRLEN];

	if (acl_allows(&f->conf->acl, &client->sa))
		return true;
	count_add(&forward_stats(f, us->worker->index)->denied, 1);
	log_cause(CAUSE_DENIED, LOG_NOTICE, "refused %s: forward %s does not allow it",
		  client_addr_text(client, text, sizeof(text)), forward_name(f->conf));
	return false;
}

/* Count a session of CLIENT in.  CAUSES, or why there may be none. */
static enum cause admit(struct udp_socket *us, const union client_addr *client)
{
	struct shared *shared = us->worker->shared;
	struct forward *f = us->on->forward;
	unsigned int most = (unsigned int)larger(shared->config->max_sessions / 4, 1);
	enum cause why = atomic_load(&shared->udp_unproven) < most ? admission_enter(shared, f) :
								     CAUSE_SESSION_LIMIT;

	if (why != CAUSES)
		return why;
	why = admission_enter_client(shared, f, &client->sa);
	if (why != CAUSES)
		admission_leave(shared, f, NULL);
	return why;
}

/* The same; one that has proven nothing gives way. */
static enum cause admit_or_crowd_out(struct udp_socket *us, const union client_addr *client)
{
	const struct forward *f = us->on->forward;
	enum cause why = admit(us, client);

	if (why != CAUSE_SESSION_LIMIT && why != CAUSE_FORWARD_LIMIT && why != CAUSE_CLIENT_LIMIT)
		return why;
	if (!udp_session_crowd_out(us->worker, why == CAUSE_SESSION_LIMIT ? NULL : f,
				   why == CAUSE_CLIENT_LIMIT ? client : NULL))
		return why;
	return admit(us, client);
}

/* Begin the session of CLIENT, if it may have one.  NULL: it may not. */
static struct udp_session *begin(struct udp_socket *us, const struct graft_tuple *tuple,
				 const struct udp_message *m, const union client_addr *client)
{
	struct worker *w = us->worker;
	struct udp_session *s = NULL;
	uint64_t due_ms;
	enum cause why = CAUSES;

	if (!is_allowed(us, client))
		return NULL;
	if (!bucket_take(&us->on->forward->accepts, 1, w->loop.now_ms, &due_ms))
		why = CAUSE_ACCEPT_RATE;
	if (why == CAUSES)
		why = admit_or_crowd_out(us, client);
	if (why == CAUSES) { /* from here on S counts what is wrong */
		why = udp_session_open(us, tuple, m, client, &s);
		if (why == CAUSE_NO_MEMORY && !s)
			admission_leave(w->shared, us->on->forward, &client->sa);
	} else {
		count_add(&w->stats.errors[why], 1);
	}
	if (why != CAUSES)
		log_cause(why, LOG_WARNING, "forward %s: a datagram is dropped",
			  forward_name(us->on->forward->conf));
	return why == CAUSES ? s : NULL;
}

/* Another socket at the address of US by which sessions may come; or NULL. */
static struct udp_socket *successor(const struct udp_socket *us, const union client_addr *local)
{
	struct addr a = addr_of(local);
	struct udp_socket *o = us->worker->udp->sockets;

	while (o && (!o->on || !udp_socket_takes(o, &a)))
		o = o->next;
	return o;
}

/* CLIENT, itself or by a proxy, has sent M to US. */
static void take(struct udp_socket *us, const struct udp_message *m,
		 const union client_addr *client)
{
	struct graft_tuple tuple;
	struct udp_session *s;

	graft_tuple_set(&tuple, &m->peer.sa, &m->local.sa);
	s = udp_session_find(us->worker, &tuple, client);
	if (!s && !us->on)
		us = successor(us, &m->local);
	if (!s && us)
		s = begin(us, &tuple, m, client);
	if (s)
		udp_session_take(s, m);
	else if (!us) /* as if nobody listened */
		icmp_tell(&m->peer, &m->local, m->ifindex, ICMP_PORT_UNREACHABLE, 0);
}

/* Each datagram of M begins with a PROXY header. */
static void take_proxied(struct udp_socket *us, const struct udp_message *m)
{
	size_t size = m->segment && m->segment < m->len ? m->segment : m->len;

	for (size_t at = 0; at < m->len; at += size) {
		struct udp_message one = *m;
		struct proxy_header header;
		const char *why = "too short";
		union client_addr client = m->peer;

		one.data += at;
		one.len = smaller(size, m->len - at);
		one.segment = 0;
		if (proxy_protocol_parse(one.data, one.len, &header, &why)) {
			count_add(&us->worker->stats.errors[CAUSE_HEADER_BAD], 1);
			log_cause(CAUSE_HEADER_BAD, LOG_NOTICE, "a datagram is dropped: %s", why);
			continue;
		}
		one.data += header.size;
		one.len -= header.size;
		if (header.has_addresses)
			client = header.source;
		take(us, &one, &client);
	}
}

/* M has come by US, or to another worker; LOCAL is complete. */
static void route(struct udp_socket *us, struct udp_message *m)
{
	const struct udp_socket *at = us->on ? us : successor(us, &m->local);

	if (at && at->on->forward->conf->proxy_protocol & PROXY_RECEIVE)
		take_proxied(us, m);
	else
		take(us, m, &m->peer);
}

static unsigned int owner_of(const struct worker *w, const union client_addr *peer)
{
	return udp_worker(peer, w->shared->config->workers);
}

/* The client that E tells of has gone, or its path is narrower than was thought. */
static void route_error(struct worker *w, const struct udp_error *e)
{
	struct graft_tuple tuple;
	struct udp_session *s;

	graft_tuple_set(&tuple, &e->peer.sa, &e->local.sa);
	s = udp_session_find(w, &tuple, &e->peer);
	if (s)
		udp_session_client_error(s, e);
}

/* --- events --- */

static void take_errors(struct udp_socket *us)
{
	struct worker *w = us->worker;
	const struct udp_message none = { 0 };
	struct udp_error e;

	while (udp_next_error(us->source.fd, &e)) {
		complete(us, &e.local);
		if (owner_of(w, &e.peer) == w->index)
			route_error(w, &e);
		else
			pass_on(w, owner_of(w, &e.peer), &none, &e);
	}
	tcp_take_error(us->source.fd);
}

static unsigned int receive(struct udp_socket *us)
{
	struct worker *w = us->worker;
	int n = udp_receive(w->udp->in, us->source.fd, 0, IN_MOST);

	for (int i = 0; i < n; i++) {
		struct udp_message *m = udp_batch_at(w->udp->in, (unsigned int)i);
		unsigned int owner = owner_of(w, &m->peer);

		complete(us, &m->local);
		if (owner == w->index)
			route(us, m);
		else
			pass_on(w, owner, m, NULL);
	}
	return n > 0 ? (unsigned int)n : 0;
}

static void on_readable(struct source *source, uint32_t events)
{
	struct udp_socket *us = container_of(source, struct udp_socket, source);
	struct worker *w = us->worker;
	unsigned int n = 0, round = 0;

	us->refs++; /* its last session may end */
	if (events & EPOLLERR)
		take_errors(us);
	do {
		udp_sessions_look(w);
		n = receive(us);
		udp_sessions_activate(w, n < IN_MOST);
	} while (++round < ROUNDS && (n == IN_MOST || w->udp->waiting));
	udp_socket_put(us);
}

static void open_parcels(struct worker *w)
{
	struct udp_worker *u = w->udp;
	struct udp_parcel *p, *next;

	pthread_mutex_lock(&u->lock);
	p = u->parcels;
	u->parcels = NULL;
	u->last = &u->parcels;
	u->n_parcels = 0;
	pthread_mutex_unlock(&u->lock);
	for (; p; p = next) {
		struct addr local = addr_of(p->error.error ? &p->error.local : &p->message.local);
		struct udp_socket *us = udp_socket_for(w, &local);

		next = p->next;
		if (p->error.error)
			route_error(w, &p->error);
		else if (us)
			route(us, &p->message);
		free(p);
	}
}

void udp_listener_after_batch(struct worker *w)
{
	if (!w->udp)
		return;
	open_parcels(w);
	udp_sessions_after_batch(w);
}

/* --- listeners --- */

int udp_listener_start(struct listener *ls, int fd)
{
	struct worker *w = ls->worker;
	struct udp_socket *us = calloc(1, sizeof(*us));
	int r = us && (w->udp || !udp_worker_open(w)) ? 0 : -ENOMEM;

	if (!r) {
		*us = (struct udp_socket){ .source = { .handle = on_readable, .fd = fd },
					   .worker = w,
					   .on = ls,
					   .addr = ls->on->addr,
					   .refs = 1 };
		r = loop_watch(&w->loop, &us->source, EPOLLIN, true);
	}
	if (r) {
		free(us);
		return r;
	}
	us->next = w->udp->sockets;
	w->udp->sockets = us;
	ls->udp = us;
	return 0;
}

void udp_listener_end(struct listener *ls)
{
	ls->udp->on = NULL;
	udp_socket_put(ls->udp);
	ls->udp = NULL;
}
