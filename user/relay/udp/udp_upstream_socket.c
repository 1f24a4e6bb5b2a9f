// SPDX-License-Identifier: BSD-2-Clause
/* A worker's sockets belong to its thread.  Any thread may ask about ports. */
#include "relay/udp/udp_upstream_socket.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/syscalls_allowed.h"
#include "datapath/udp.h"
#include "datapath/graft/udp_graft.h"
#include "relay/clients.h"
#include "relay/forward.h"
#include "relay/upstream_socket.h"

SYSCALLS_ALLOWED(SYSCALL(bind), SYSCALL(connect), SYSCALL(recvfrom), SYSCALL(close),
		 SYSCALL(getrandom)); /* arc4random_uniform(3) */

/* Sockets of a worker that rest, and how long they are kept. */
#define RESTS_MOST 4096
#define KEPT_MS 1000

/* --- ports --- */

#define PORT_RANGE "/proc/sys/net/ipv4/ip_local_port_range" /* of IPv6, too */
#define PORTS_RESERVED "/proc/sys/net/ipv4/ip_local_reserved_ports"
#define PORTS 65536U
#define TRIES 64U

static uint16_t ours[PORTS];
static uint32_t n_ours;
static _Atomic uint64_t free_at[PORTS]; /* by port, in ms; 0: it is not ours; NEVER: in use */

/* Ports and ranges of them in the file at PATH: "1,3-5", or "1 5". */
static void udp_read_ports(const char *path, bool are_ours)
{
	FILE *f = fopen(path, "re");
	unsigned int first, last;
	int n;

	while (f && (n = fscanf(f, "%u%*1[- \t]%u", &first, &last)) > 0) {
		for (uint32_t port = first; port <= (n > 1 ? last : first) && port < PORTS; port++)
			free_at[port] = are_ours;
		(void)fgetc(f); /* a comma, or the end */
	}
	if (f)
		fclose(f);
}

void udp_ports_open(void)
{
	memset(free_at, 0, sizeof(free_at));
	n_ours = 0;
	udp_read_ports(PORT_RANGE, true);
	udp_read_ports(PORTS_RESERVED, false);
	for (uint32_t port = 1; port < PORTS; port++)
		if (free_at[port])
			ours[n_ours++] = (uint16_t)port;
}

/*
 * Draw TRIES ports at random.  If none of them is free, try TRIES ports in a row: if there are few
 * ports, each of them is tried.
 */
in_port_t udp_port_take(uint64_t now_ms)
{
	uint32_t n = 0;

	for (unsigned int i = 0; n_ours && i < 2 * TRIES; i++) {
		uint64_t at;

		n = i < TRIES ? arc4random_uniform(n_ours) : (n + 1) % n_ours;
		at = atomic_load(&free_at[ours[n]]);
		if (at && at <= now_ms &&
		    atomic_compare_exchange_strong(&free_at[ours[n]], &at, NEVER))
			return htons(ours[n]);
	}
	return 0;
}

bool udp_port_take_this(in_port_t port)
{
	uint64_t was = atomic_exchange(&free_at[ntohs(port)], NEVER);

	return was && was != NEVER;
}

void udp_port_put(in_port_t port, uint64_t free_ms)
{
	atomic_store(&free_at[ntohs(port)], free_ms);
}

bool udp_port_is_used(in_port_t port)
{
	return atomic_load(&free_at[ntohs(port)]) == NEVER;
}

/* Nobody needs UP any more.  Events of this batch may still point at it. */
void udp_upstream_close(struct udp_upstream *up, uint64_t ms)
{
	struct udp_upstreams *us = up->among;

	loop_close(&us->worker->loop, &up->source);
	up->rests_ms = us->worker->loop.now_ms + ms;
	if (up->port)
		udp_port_put(up->port, up->rests_ms);
	up->session = NULL;
	if (ms != UDP_PORT_STREAM_MS ||
	    clients_enter(&us->worker->shared->clients, &up->client.sa, 0, false)) {
		worker_free_later(us->worker, &up->leftover);
		return;
	}
	if (!us->timer.prev)
		timer_set(&us->worker->loop, &us->timer, us->worker->loop.now_ms + KEPT_MS);
	STAILQ_INSERT_TAIL(&us->charges, up, next);
}

/* --- sockets that rest --- */

static struct udp_upstream *udp_take_first_rest(struct udp_upstreams *us)
{
	struct udp_upstream *up = STAILQ_FIRST(&us->rests);

	STAILQ_REMOVE_HEAD(&us->rests, next);
	us->n_rests--;
	atomic_fetch_sub(&up->forward->sessions, 1);
	return up;
}

/* True if no late answer has come to UP: epoll has reported none, and none waits in the socket. */
static bool udp_is_clean(const struct udp_upstream *up)
{
	char c;

	return up->rested_ms != NEVER && recv(up->source.fd, &c, sizeof(c), MSG_DONTWAIT) < 0 &&
	       errno == EAGAIN;
}

/* Close the sockets that have rested for KEPT_MS. */
static void udp_upstreams_close(struct udp_upstreams *us, uint64_t kept_ms)
{
	while (us->n_rests &&
	       STAILQ_FIRST(&us->rests)->rests_ms + kept_ms <= us->worker->loop.now_ms) {
		struct udp_upstream *up = udp_take_first_rest(us);

		udp_upstream_close(up, udp_is_clean(up) ? UDP_PORT_RESTS_MS : UDP_PORT_OWED_MS);
	}
}

static void udp_on_rest(struct timer *timer)
{
	struct udp_upstreams *us = container_of(timer, struct udp_upstreams, timer);
	struct udp_upstream *up;

	udp_upstreams_close(us, KEPT_MS);
	while ((up = STAILQ_FIRST(&us->charges)) && up->rests_ms <= us->worker->loop.now_ms) {
		STAILQ_REMOVE_HEAD(&us->charges, next);
		clients_leave(&us->worker->shared->clients, &up->client.sa);
		free(up);
	}
	if (us->n_rests || !STAILQ_EMPTY(&us->charges))
		timer_set(&us->worker->loop, timer, us->worker->loop.now_ms + KEPT_MS);
}

bool udp_upstream_rest(struct udp_upstream *up, struct forward *f)
{
	struct udp_upstreams *us = up->among;
	uint64_t now = us->worker->loop.now_ms;

	if (us->n_rests == RESTS_MOST || forward_needs_privileges(f->conf))
		return false;
	/* arm it anew: the events so far were those of the session */
	loop_watch(&us->worker->loop, &up->source, EPOLLIN | (uint32_t)EPOLLET, true);
	up->session = NULL;
	up->forward = f;
	up->rests_ms = now;
	up->rested_ms = now + UDP_PORT_RESTS_MS;
	atomic_fetch_add(&f->sessions, 1);
	STAILQ_INSERT_TAIL(&us->rests, up, next);
	if (!us->timer.prev)
		timer_set(&us->worker->loop, &us->timer, now + KEPT_MS);
	us->n_rests++;
	return true;
}

/* A rested socket of F that is connected to TO; or NULL. */
static struct udp_upstream *udp_take_rested(struct udp_upstreams *us, const struct forward *f,
					    const struct addr *to)
{
	struct udp_upstream *up = STAILQ_FIRST(&us->rests);
	union client_addr at;

	client_addr_set(&at, &to->sa);
	if (!up || up->rested_ms > us->worker->loop.now_ms || up->forward != f ||
	    !client_addr_equal(&up->to, &at))
		return NULL;
	udp_take_first_rest(us);
	if (udp_is_clean(up))
		return up;
	udp_upstream_close(up, UDP_PORT_OWED_MS);
	return NULL;
}

/* --- new sockets --- */

static void udp_on_upstream_event(struct source *source, uint32_t events)
{
	struct udp_upstream *up = container_of(source, struct udp_upstream, source);

	if (up->session)
		up->among->handle(up->session, events);
	else /* a late answer: others may follow */
		up->rested_ms = NEVER;
}

/* Bind UP to OWN; NULL: to a port of ours.  -errno. */
static int udp_bind_port(struct udp_upstream *up, const struct forward_conf *fc,
			 const union client_addr *client, const struct addr *own)
{
	struct addr a = { .in6.sin6_family = up->to.sa.sa_family };
	const struct udp_table *held = graft_table_udp(up->among->worker->shared->grafts);
	uint64_t now = up->among->worker->loop.now_ms;
	int r = -EADDRINUSE;

	if (own)
		a = *own;
	else if (fc->transparent)
		memcpy(&a.ss, client, sizeof(*client));
	else if (fc->source.len)
		a = fc->source;
	for (unsigned int i = 0; i < TRIES && r == -EADDRINUSE; i++) {
		up->port = own ? addr_port(own) : udp_port_take(now);
		if (!up->port)
			break;
		if (own)
			udp_port_take_this(up->port);
		addr_set_port(&a, up->port);
		/* this length is right for either family */
		if (own || !udp_graft_has_port(held, up->port))
			r = bind(up->source.fd, &a.sa, sizeof(a.in6)) ? -errno : 0;
		if (!r || own)
			return r;
		udp_port_put(up->port, now + UDP_PORT_RESTS_MS);
		up->port = 0;
	}
	return r == -EADDRINUSE ? -EADDRNOTAVAIL : r;
}

/* The upstream of S at FD, to TO, which is not watched yet.  NULL: no memory. */
static struct udp_upstream *udp_upstream_new(struct udp_upstreams *us, struct udp_session *s,
					     const union client_addr *client, const struct addr *to,
					     int fd)
{
	struct udp_upstream *up = calloc(1, sizeof(*up));

	if (!up)
		return NULL;
	up->source = (struct source){ .handle = udp_on_upstream_event, .fd = fd };
	up->among = us;
	up->session = s;
	up->client = *client;
	client_addr_set(&up->to, &to->sa);
	return up;
}

int udp_upstream_open(struct udp_upstreams *us, struct udp_session *s, const struct forward *f,
		      const union client_addr *client, const struct addr *to,
		      const struct addr *own, struct udp_upstream **ret)
{
	struct udp_upstream *up = own ? NULL : udp_take_rested(us, f, to);
	int fd, r;

	if (up) {
		up->session = s;
		up->client = *client;
		*ret = up;
		return 0;
	}
	fd = upstream_socket(f, &client->sa, to);
	if (fd == -EMFILE || fd == -ENFILE) { /* resting sockets hold descriptors */
		udp_upstreams_close(us, 0);
		fd = upstream_socket(f, &client->sa, to);
	}
	if (fd < 0)
		return fd;
	up = udp_upstream_new(us, s, client, to, fd);
	if (!up) {
		close(fd);
		return -ENOMEM;
	}
	r = udp_bind_port(up, f->conf, client, own);
	if (!r && !f->conf->responses) /* few answers need no IP_RECVERR and no UDP_GRO */
		r = udp_set_flow(fd, to->ss.ss_family);
	if (!r && connect(fd, &to->sa, to->len))
		r = -errno;
	r = r ?: loop_watch(&us->worker->loop, &up->source, EPOLLIN | (uint32_t)EPOLLET, true);
	if (!r)
		*ret = up;
	else
		udp_upstream_close(up, UDP_PORT_RESTS_MS);
	return r;
}

int udp_upstream_adopt(struct udp_upstreams *us, struct udp_session *s,
		       const union client_addr *client, const struct addr *to, in_port_t port,
		       int fd, struct udp_upstream **ret)
{
	struct udp_upstream *up = udp_upstream_new(us, s, client, to, fd);
	int r;

	if (!up)
		return -ENOMEM;
	up->port = port;
	r = loop_watch(&us->worker->loop, &up->source, EPOLLIN | (uint32_t)EPOLLET, true);
	if (r) {
		free(up);
		return r;
	}
	udp_port_take_this(port);
	*ret = up;
	return 0;
}

/* --- those of a worker --- */

void udp_upstreams_open(struct udp_upstreams *us, struct worker *w, udp_upstream_fn *handle)
{
	*us = (struct udp_upstreams){ .worker = w, .handle = handle, .timer.fire = udp_on_rest };
	STAILQ_INIT(&us->rests);
	STAILQ_INIT(&us->charges);
}
