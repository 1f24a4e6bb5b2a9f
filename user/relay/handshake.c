// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation.  The server's connection is made after the client's, so its SYN can be made
 * like the client's: `shapes` tells the packet programs how.  What the server lacks is known too late,
 * since the client's handshake is over by then.  So that is remembered with the server, and later
 * clients of a forward all of whose servers lack it are not granted it either.  After KNOWN_MS one
 * session finds out anew.
 */
#include "relay/handshake.h"

#include "base/minmax.h"
#include "datapath/tcp.h"

#define KNOWN_MS 600000

#define USUAL_UNIT 1024 /* of windows, as the relay scales them */

/* Larger ones are those of lo; but half of the client's window bounds what TCP_INFO tells of them. */
#define SEGMENT_MOST 16384

/*
 * Windows of H are small, and have no scale: of the units of the usual scale they have too few.  With
 * 65,535 bytes the other end sends more than such an end can take.
 */
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
	if (client.takes < SEGMENT_MOST && (!told || client.takes < told))
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
	struct graft_shape shape;
	uint8_t lacks = 0;

	if (!s->server ||
	    (why != GRAFT_TIMESTAMPS && why != GRAFT_ECN && why != GRAFT_MSS &&
	     why != GRAFT_WINDOW) ||
	    tcp_handshake(s->sides[CLIENT].fd, &client) ||
	    tcp_handshake(s->sides[UPSTREAM].fd, &server))
		return;
	graft_shape_of(shared->grafts, s->sides[UPSTREAM].fd, &shape);
	if (client.timestamps && !server.timestamps)
		lacks |= SHAPED_TIMESTAMPS;
	if (client.ecn && shape.ecn == GRAFT_ECN_ASK && !shape.ecn_answered)
		lacks |= SHAPED_ECN;
	if (is_small(&server))
		lacks |= SHAPED_SCALE;
	atomic_store(&s->server->told_mss, 0); /* routes may have changed */
	atomic_store(&s->server->takes_mss,
		     smaller(client.told, SEGMENT_MOST) > server.takes ? server.takes : 0);
	atomic_store(&s->server->lacks, lacks);
	atomic_store(&s->server->seen_ms, s->worker->loop.now_ms);
	atomic_fetch_add(&shared->server_news, 1);
	for (unsigned int i = 0; i < shared->config->workers; i++)
		loop_wake(&shared->workers[i].loop);
}

/* Of servers that clients of one listener may have. */
struct common {
	unsigned int mss; /* all of them take it; 0: any */
	uint8_t lack;     /* none of them has it */
	size_t n;
};

/* With the lock of F's servers. */
static void look_at(const struct forward *f, uint64_t now_ms, struct common *c)
{
	c->n += f->servers.n;
	for (size_t i = 0; i < f->servers.n; i++) {
		const struct server *v = f->servers.members[i].server;
		bool known = atomic_load(&v->seen_ms) + KNOWN_MS > now_ms;
		unsigned int mss = known ? atomic_load(&v->takes_mss) : 0;

		if (!known || !forward_grafts(f))
			c->lack = 0;
		else
			c->lack &= atomic_load(&v->lacks);
		if (mss && forward_grafts(f) && (!c->mss || mss < c->mss))
			c->mss = mss;
	}
}

void handshake_shape_listener(struct shared *shared, struct forward *f, int fd, uint64_t now_ms)
{
	struct common c = { .lack = SHAPED_TIMESTAMPS | SHAPED_ECN | SHAPED_SCALE };
	struct graft_shape shape;

	pthread_mutex_lock(&f->totals->servers_lock);
	look_at(f, now_ms, &c);
	for (unsigned int i = 0; f->totals->names && i < SNI_BUCKETS; i++)
		for (const struct sni_name *n = f->totals->names[i]; n; n = n->next)
			look_at(n->forward, now_ms, &c);
	pthread_mutex_unlock(&f->totals->servers_lock);
	if (!c.n)
		c.lack = 0;
	shape = (struct graft_shape){
		.no_timestamps = !!(c.lack & SHAPED_TIMESTAMPS),
		.ecn = c.lack & SHAPED_ECN ? GRAFT_ECN_REMOVE : GRAFT_ECN_KEEP,
	};
	graft_shape(shared->grafts, fd, &shape);
	tcp_set_mss(fd, c.mss);
	tcp_set_unscaled(fd, c.lack & SHAPED_SCALE);
}
