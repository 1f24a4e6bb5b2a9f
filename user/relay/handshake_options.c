// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation.  The connection to the server is made after the client's, so its SYN can be
 * made like the client's SYN.  The BPF map `shapes` tells the packet programs how.  If the server
 * lacks an option, the relay learns that too late: the client's handshake is over by then.  So the
 * lack is remembered.  If all servers of a forward lack an option, later clients of the forward are
 * not granted it.  After KNOWN_MS the lack is forgotten, and a later session finds out anew.
 */
#include "relay/handshake_options.h"

#include <netinet/tcp.h>

#include "base/minmax.h"
#include "base/socket_set.h"
#include "datapath/tcp.h"
#include "relay/session_syn.h"

#define KNOWN_MS 600000

#define USUAL_UNIT 1024 /* bytes: the usual unit of the relay's scaled windows */

/* Only lo has segments of this size.  TCP_INFO reports them wrongly: at most half the window. */
#define SEGMENT_OF_LO 16384

/* Windows of H have no scale, and no room for two segments and two units. */
static bool is_small(const struct tcp_handshake *h)
{
	return !h->scaled && h->window < 2 * (h->takes + USUAL_UNIT);
}

void handshake_shape(struct session *s, int fd)
{
	struct shared *shared = s->worker->shared;
	struct tcp_handshake client;
	struct graft_shape shape = { 0 };
	unsigned int told = s->server ? atomic_load(&s->server->told_mss) : 0;

	if (!s->tcp || !shared->grafts || !forward_grafts(s->forward) ||
	    tcp_handshake(s->sides[CLIENT].fd, &client))
		return;
	if (is_small(&client))
		tcp_set_unscaled(fd, true);
	shape.no_timestamps = !client.timestamps;
	shape.ecn = client.ecn ? GRAFT_ECN_ASK : GRAFT_ECN_KEEP;
	if (client.takes < SEGMENT_OF_LO && (!told || client.takes < told))
		shape.mss = (uint16_t)client.takes;
	if ((!shape.mss && !shape.no_timestamps && !shape.ecn) ||
	    graft_shape(shared->grafts, fd, &shape))
		return;
	if (told && shape.mss)
		s->shaped |= SHAPED_MSS;
	s->shaped |= (shape.no_timestamps ? SHAPED_TIMESTAMPS : 0) | (shape.ecn ? SHAPED_ECN : 0);
}

void handshake_connected(struct session *s)
{
	struct tcp_handshake client, server;

	if (!s->tcp || !s->worker->shared->grafts || atomic_load(&s->server->told_mss) ||
	    tcp_handshake(s->sides[UPSTREAM].fd, &server) ||
	    tcp_handshake(s->sides[CLIENT].fd, &client))
		return;
	atomic_store(&s->server->told_mss, (uint16_t)server.told);
	if (client.takes < server.told)
		s->shaped |= SHAPED_MSS;
}

void handshake_refused(struct session *s, enum graft_refusal why)
{
	struct shared *shared = s->worker->shared;
	struct tcp_handshake client, server;
	struct server *v = s->server;
	uint64_t now_ms = s->worker->loop.now_ms;
	struct graft_shape shape;
	uint16_t takes = 0;
	uint8_t lacks, asked;
	bool news;

	if (!v ||
	    (why != GRAFT_TIMESTAMPS && why != GRAFT_ECN && why != GRAFT_MSS &&
	     why != GRAFT_WINDOW) ||
	    tcp_handshake(s->sides[CLIENT].fd, &client) ||
	    tcp_handshake(s->sides[UPSTREAM].fd, &server))
		return;
	graft_shape_of(shared->grafts, s->sides[UPSTREAM].fd, &shape);
	asked = SHAPED_SCALE | (client.timestamps ? SHAPED_TIMESTAMPS : 0) |
		(shape.ecn == GRAFT_ECN_ASK ? SHAPED_ECN : 0);
	lacks = (server.timestamps ? 0 : SHAPED_TIMESTAMPS) |
		(shape.ecn_answered ? 0 : SHAPED_ECN) | (is_small(&server) ? SHAPED_SCALE : 0);
	/* an option that the server was not asked for stays as earlier sessions found it */
	lacks = (lacks & asked) | (uint8_t)(atomic_load(&v->lacks) & ~asked);
	if (smaller(client.told, SEGMENT_OF_LO) > server.takes ||
	    atomic_load(&v->takes_mss) == server.takes)
		takes = (uint16_t)server.takes;
	if (why == GRAFT_MSS)
		atomic_store(&v->told_mss, 0); /* routes may have changed */
	news = atomic_exchange(&v->takes_mss, takes) != takes;
	news = atomic_exchange(&v->lacks, lacks) != lacks || news;
	news = atomic_exchange(&v->seen_ms, now_ms) + KNOWN_MS <= now_ms || news;
	if (!news)
		return;
	atomic_fetch_add(&shared->server_news, 1);
	for (unsigned int i = 0; i < shared->config->workers; i++)
		loop_wake(&shared->workers[i].loop);
}

/* Limit C to the abilities of F's servers, while their lock is held.  Returns their number. */
static size_t look_at(const struct forward *f, uint64_t now_ms, struct listener_shape *c)
{
	for (size_t i = 0; i < f->servers.n; i++) {
		const struct server *v = f->servers.members[i].server;
		bool known = atomic_load(&v->seen_ms) + KNOWN_MS > now_ms;
		uint16_t mss = known ? atomic_load(&v->takes_mss) : 0;

		if (!known || !forward_grafts(f))
			c->lack = 0;
		else
			c->lack &= atomic_load(&v->lacks);
		if (mss && forward_grafts(f) && (!c->mss || mss < c->mss))
			c->mss = mss;
	}
	return f->servers.n;
}

void handshake_shape_listener(struct shared *shared, struct forward *f, int fd, uint64_t now_ms,
			      struct listener_shape *last)
{
	struct listener_shape c = { .lack = SHAPED_TIMESTAMPS | SHAPED_ECN | SHAPED_SCALE };
	const struct sni_name *n;
	struct graft_shape shape;
	size_t servers;

	pthread_mutex_lock(&f->totals->servers_lock);
	servers = look_at(f, now_ms, &c);
	for (unsigned int i = 0; f->totals->sni && i < SNI_BUCKETS; i++)
		STAILQ_FOREACH(n, &f->totals->sni[i], in_bucket)
			servers += look_at(n->forward, now_ms, &c);
	pthread_mutex_unlock(&f->totals->servers_lock);
	if (!servers)
		c.lack = 0;
	c.stock = session_syn_stock(shared, f);
	if (c.mss == last->mss && c.lack == last->lack && c.stock == last->stock)
		return;
	*last = c;
	shape = (struct graft_shape){
		.no_timestamps = !!(c.lack & SHAPED_TIMESTAMPS),
		.ecn = c.lack & SHAPED_ECN ? GRAFT_ECN_REMOVE : GRAFT_ECN_KEEP,
		.stock = c.stock,
		.heeds_hooks = f->conf->set_up == SET_UP_AUTO,
	};
	graft_shape(shared->grafts, fd, &shape);
	socket_set(fd, IPPROTO_TCP, TCP_MAXSEG, c.mss);
	tcp_set_unscaled(fd, c.lack & SHAPED_SCALE);
}
